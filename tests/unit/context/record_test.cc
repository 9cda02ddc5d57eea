#include "context/record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "unit/context/random.h"

namespace theseus {
namespace {

ScheduleDefinition some_schedule() {
  ScheduleDefinition schedule;
  schedule.name = "heal.7:x-1";
  schedule.collective = Collective::Broadcast;
  schedule.root = 3;
  schedule.algorithm = "healed:1,2";
  schedule.plan_hash = 0x123456789abcdef0;
  schedule.usable = "healing == 7 and bytes >= 1<<20";
  schedule.score = "2";
  schedule.replaces = "ring";
  return schedule;
}

std::vector<Record> some_records() {
  AttributeDefinition health = exogenous("nic_health", 16, 1);
  AttributeDefinition smooth = hooked("calm", Hook::Smooth, "nic_health", 0.25);
  AttributeDefinition slow = hooked("slow", Hook::Hysteresis, "calm", 0.4, 0.6);
  ScheduleDefinition planned = some_schedule();
  planned.algorithm.clear();
  planned.plan_bytes = 4096;
  return {health,
          smooth,
          slow,
          ExogenousUpdate{"nic_health", {{3, 0.125}, {2, -0.0}}},
          some_schedule(),
          planned,
          ScheduleRemoval{"heal.7:x-1"}};
}

// What is written is read back, and writing it again gives the same bytes.
TEST(Record, ComesBackAsItWasWritten) {
  for (const Record& record : some_records()) {
    const std::string bytes = encode(record);
    const Result<Record> read = decode_record(bytes);
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(*read, record);
    EXPECT_EQ(encode(*read), bytes);
    EXPECT_TRUE(check(record).ok());
  }
}

// The bytes are a contract between processes of one job: little-endian, version first.
TEST(Record, HasTheseBytes) {
  const std::string expected("\x01\x03\x02\x00\x00\x00s1", 8);
  EXPECT_EQ(encode(ScheduleRemoval{"s1"}), expected);
  const std::string update(
      "\x01\x01\x01\x00\x00\x00"
      "a\x01\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\xf0\x3f",
      23);
  EXPECT_EQ(encode(ExogenousUpdate{"a", {{2, 1.0}}}), update);
}

// Each fault that needs no log is refused, by check() and by decode alike, with a sentence that names the thing.
TEST(Record, RefusesWhatCannotBe) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinite = std::numeric_limits<double>::infinity();
  AttributeDefinition number = exogenous("a");
  const auto attribute = [&number](auto change) {
    AttributeDefinition one = number;
    change(one);
    return Record(one);
  };
  const auto schedule = [](auto change) {
    ScheduleDefinition one = some_schedule();
    change(one);
    return Record(one);
  };
  const std::vector<std::pair<Record, const char*>> faults = {
      {attribute([](auto& a) { a.name = ""; }), "name of an attribute"},
      {attribute([](auto& a) { a.name = "a b"; }), "name of an attribute"},
      {attribute([](auto& a) { a.name = std::string(129, 'x'); }), "name of an attribute"},
      {attribute([](auto& a) { a.length = 0; }), "length"},
      {attribute([](auto& a) { a.length = kLongestArray + 1; }), "length"},
      {attribute([&](auto& a) { a.initial = nan; }), "finite"},
      {attribute([&](auto& a) { a.first = infinite; }), "finite"},
      {attribute([](auto& a) { a.first = 1; }), "takes no parameter"},
      {attribute([](auto& a) { a.source = "b"; }), "source"},
      {attribute([](auto& a) { a.hook = static_cast<Hook>(kHooks); }), "unknown hook"},
      {attribute([](auto& a) { a.hook = Hook::Requests, a.length = 2; }), "length 1"},
      {attribute([](auto& a) { a.hook = Hook::Smooth, a.first = 0.5; }), "name of a source"},
      {attribute([](auto& a) { a.hook = Hook::Smooth, a.source = "b"; }), "weight"},
      {attribute([](auto& a) { a.hook = Hook::Smooth, a.source = "b", a.first = 1.5; }), "weight"},
      {attribute([](auto& a) { a.hook = Hook::Smooth, a.source = "b", a.first = 1, a.second = 1; }), "second"},
      {attribute([](auto& a) { a.hook = Hook::Hysteresis, a.source = "b", a.first = 1; }), "threshold"},
      {attribute([](auto& a) { a.hook = Hook::Dwell, a.source = "b", a.first = -1; }), "negative"},
      {ExogenousUpdate{"a", {}}, "an update sets"},
      {ExogenousUpdate{"a", {{kLongestArray, 0}}}, "longest array"},
      {ExogenousUpdate{"a", {{0, nan}}}, "finite"},
      {ExogenousUpdate{"a", std::vector<std::pair<uint32_t, double>>(kLongestArray + 1)}, "an update sets"},
      {schedule([](auto& s) { s.name = "a/b"; }), "name of a schedule"},
      {schedule([](auto& s) { s.collective = static_cast<Collective>(kCollectives); }), "unknown collective"},
      {schedule([](auto& s) { s.collective = Collective::SendRecv; }), "point to point"},
      {schedule([](auto& s) { s.collective = Collective::AllReduce; }), "root"},
      {schedule([](auto& s) { s.root = -2; }), "root"},
      {schedule([](auto& s) { s.algorithm = std::string(kLongestArguments + 1, 'x'); }), "its algorithm"},
      {schedule([](auto& s) { s.algorithm = ""; }), "neither an algorithm nor a plan"},
      {schedule([](auto& s) { s.usable = std::string(kLongestPolicy + 1, '1'); }), "usable"},
      {schedule([](auto& s) { s.score = std::string(kLongestPolicy + 1, '1'); }), "score"},
      {schedule([](auto& s) { s.replaces = "a b"; }), "it replaces"},
      {schedule([](auto& s) { s.replaces = s.name; }), "itself"},
      {ScheduleRemoval{""}, "name of a schedule"},
  };
  for (const auto& [record, words] : faults) {
    const Status refused = check(record);
    EXPECT_EQ(refused.code(), Code::InvalidArgument) << words;
    EXPECT_NE(refused.message().find(words), std::string::npos) << refused.message() << " lacks " << words;
    const Result<Record> read = decode_record(encode(record));
    ASSERT_FALSE(read.ok()) << words;
    EXPECT_NE(read.status().message().find(words), std::string::npos) << read.status().message();
  }
}

// Every cut, every longer text and every other version is refused.
TEST(Record, RefusesOtherLengthsAndVersions) {
  for (const Record& record : some_records()) {
    const std::string bytes = encode(record);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(decode_record(std::string_view(bytes).substr(0, size)).ok()) << size;
    }
    EXPECT_FALSE(decode_record(bytes + '\0').ok());
    std::string other = bytes;
    other[0] = 2;
    const Result<Record> read = decode_record(other);
    ASSERT_FALSE(read.ok());
    EXPECT_NE(read.status().message().find("version 2"), std::string::npos);
  }
  EXPECT_FALSE(decode_record(std::string(kLongestRecord + 1, '\1')).ok());
}

// Whatever bytes come: an error, or a record that is written as the same bytes and passes check().
TEST(Record, SurvivesAnyBytes) {
  Random random(1);
  const std::vector<Record> records = some_records();
  int read_back = 0;
  for (int round = 0; round < 60000; ++round) {
    std::string bytes;
    if (random.chance(0.2)) {
      for (uint64_t i = random.below(64); i > 0; --i) bytes += static_cast<char>(random.bits());
      if (bytes.size() > 1 && random.chance(0.9)) bytes[0] = 1, bytes[1] = static_cast<char>(random.below(5));
    } else {
      bytes = encode(records[random.below(records.size())]);
      for (uint64_t i = random.between(1, 3); i > 0; --i) {
        const size_t at = random.below(bytes.size());
        switch (random.below(4)) {
          case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8))); break;
          case 1: bytes[at] = static_cast<char>(random.bits()); break;
          case 2: bytes.insert(at, 1, static_cast<char>(random.bits())); break;
          default:
            if (bytes.size() > 1) bytes.erase(at, 1);
        }
      }
    }
    const Result<Record> read = decode_record(bytes);
    if (!read.ok()) continue;
    ++read_back;
    ASSERT_EQ(encode(*read), bytes);
    ASSERT_TRUE(check(*read).ok());
  }
  EXPECT_GT(read_back, 1000);
}

}  // namespace
}  // namespace theseus
