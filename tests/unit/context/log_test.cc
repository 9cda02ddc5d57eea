#include "context/log.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "unit/context/random.h"

namespace theseus {
namespace {

ScheduleDefinition ring(const std::string& name, const std::string& replaces = {}) {
  ScheduleDefinition schedule;
  schedule.name = name;
  schedule.algorithm = "ring";
  schedule.replaces = replaces;
  return schedule;
}

ScheduleSet set_of(std::initializer_list<uint32_t> ids) {
  ScheduleSet set;
  for (const uint32_t id : ids) set.set(id);
  return set;
}

void add(ContextLog& log, const Record& record) {
  const Status status = log.apply(record);
  ASSERT_TRUE(status.ok()) << status.message();
}

TEST(ScheduleSet, IsASetOfIds) {
  Random random(2);
  for (int round = 0; round < 200; ++round) {
    std::set<uint32_t> plain[2];
    ScheduleSet sets[2];
    for (int i = 0; i < 60; ++i) {
      const uint64_t which = random.below(2);
      const auto id = static_cast<uint32_t>(random.below(200));
      const bool value = random.chance(0.7);
      sets[which].set(id, value);
      value ? (void)plain[which].insert(id) : (void)plain[which].erase(id);
    }
    ScheduleSet both = sets[0];
    both.intersect(sets[1]);
    for (uint32_t id = 0; id < 300; ++id) {
      ASSERT_EQ(sets[0].test(id), plain[0].contains(id));
      ASSERT_EQ(both.test(id), plain[0].contains(id) && plain[1].contains(id));
    }
    // One value, one form: equality and messages rest on it.
    ASSERT_TRUE(both.words().empty() || both.words().back() != 0);
    ASSERT_EQ(ScheduleSet::from_words(both.words()), both);
  }
}

// Updates fold in log order into one map with one version: two writers of one array do not lose each other's elements.
TEST(ContextLog, FoldsUpdatesOfElements) {
  ContextLog log(7);
  add(log, exogenous("h", 3, 1));
  add(log, ExogenousUpdate{"h", {{0, 0.5}}});
  add(log, ExogenousUpdate{"h", {{2, 0.25}, {1, 0.75}, {2, 0.125}}});
  EXPECT_EQ(log.find_attribute("h")->values, (std::vector<double>{0.5, 0.75, 0.125}));
  EXPECT_EQ(log.find_attribute("h")->version, 2u);
  const Result<Snapshot> older = log.snapshot(2, {});
  ASSERT_TRUE(older.ok());
  EXPECT_EQ(older->attributes[0].values, (std::vector<double>{0.5, 1, 1}));
  EXPECT_EQ(older->attributes[0].version, 1u);
}

// Ids count up in log order and are never reused; a removed schedule keeps its links, its name becomes free.
TEST(ContextLog, GivesIdsInLogOrder) {
  ContextLog log(7);
  add(log, ring("a"));
  add(log, ring("b", "a"));
  add(log, ScheduleRemoval{"a"});
  add(log, ring("a", "b"));
  EXPECT_EQ(log.schedules(), 3u);
  EXPECT_EQ(log.find_schedule("a"), 2u);
  EXPECT_EQ(log.schedule(0)->definition.name, "a");
  EXPECT_FALSE(log.removed(0, 2));
  EXPECT_TRUE(log.removed(0, 3));
  const Result<Snapshot> before = log.snapshot(2, set_of({0, 1}));
  ASSERT_TRUE(before.ok());
  EXPECT_EQ(before->schedules.size(), 2u);
  const Result<Snapshot> after = log.snapshot(4, set_of({0, 1, 2}));
  ASSERT_TRUE(after.ok());
  ASSERT_EQ(after->schedules.size(), 2u);
  EXPECT_EQ(after->schedules[0].id, 1u);
  EXPECT_EQ(after->replaces, (std::vector<int32_t>{-1, 0, 1}));
}

// Attributes that follow a source are as long as it.
TEST(ContextLog, TakesLengthFromTheSource) {
  ContextLog log(7);
  add(log, exogenous("h", 3));
  add(log, hooked("calm", Hook::Smooth, "h", 1, 0, 2));
  EXPECT_EQ(log.find_attribute("calm")->definition.length, 3u);
  EXPECT_EQ(log.find_attribute("calm")->source, 0);
  EXPECT_EQ(log.find_attribute("calm")->values, (std::vector<double>{2, 2, 2}));
}

// What the log cannot take is refused with the reason and takes no position.
TEST(ContextLog, RefusesWhatDoesNotFit) {
  ContextLog log(7);
  add(log, exogenous("h", 3));
  add(log, hooked("n", Hook::Requests));
  add(log, ring("a"));
  add(log, ring("gone"));
  add(log, ScheduleRemoval{"gone"});
  ScheduleDefinition gather = ring("g", "a");
  gather.collective = Collective::AllGather;
  AttributeDefinition longer = hooked("c", Hook::Smooth, "h", 1);
  longer.length = 2;
  const std::vector<std::pair<Record, const char*>> faults = {
      {exogenous("h"), "exists already"},
      {hooked("c", Hook::Smooth, "x", 1), "source x is unknown"},
      {hooked("c", Hook::Smooth, "n", 1), "not exogenous"},
      {longer, "length 2"},
      {ExogenousUpdate{"x", {{0, 1}}}, "x is unknown"},
      {ExogenousUpdate{"n", {{0, 1}}}, "advanced by its hook"},
      {ExogenousUpdate{"h", {{3, 1}}}, "index 3 of an array of 3"},
      {ring("a"), "exists already"},
      {ring("b", "x"), "unknown or was removed"},
      {ring("b", "gone"), "unknown or was removed"},
      {gather, "for AllGather"},
      {ScheduleRemoval{"x"}, "unknown or was removed"},
      {ScheduleRemoval{"gone"}, "unknown or was removed"},
      {ring("a b"), "the name of a schedule"},
  };
  for (const auto& [record, words] : faults) {
    const Status refused = log.apply(record);
    ASSERT_EQ(refused.code(), Code::InvalidArgument) << words;
    EXPECT_NE(refused.message().find(words), std::string::npos) << refused.message() << " lacks " << words;
  }
  EXPECT_EQ(log.position(), 5u);
}

TEST(ContextLog, RefusesTooMany) {
  ContextLog log(7);
  for (size_t i = 0; i < kMostElements / kLongestArray; ++i) {
    add(log, exogenous(name_of("a", i), kLongestArray));
  }
  EXPECT_FALSE(log.apply(exogenous("one_more")).ok());
  for (uint32_t i = 0; i < kMostSchedules; ++i) {
    ASSERT_TRUE(log.apply(ring(name_of("s", i))).ok());
    ASSERT_TRUE(log.apply(ScheduleRemoval{name_of("s", i)}).ok());
  }
  EXPECT_FALSE(log.apply(ring("one_more")).ok());
}

// The plain reference: replay a prefix of the records.
struct Replayed {
  std::vector<Attribute> attributes;
  std::map<std::string, uint32_t> alive;
  std::vector<std::string> names;
};

Replayed replay(const std::vector<Record>& records, uint64_t position) {
  Replayed state;
  for (uint64_t i = 0; i < position; ++i) {
    if (const auto* attribute = std::get_if<AttributeDefinition>(&records[i])) {
      Attribute added{static_cast<uint32_t>(state.attributes.size()), *attribute, -1, 0, {}};
      for (const Attribute& source : state.attributes) {
        if (source.definition.name != attribute->source) continue;
        added.source = static_cast<int32_t>(source.id);
        added.definition.length = source.definition.length;
      }
      added.values.assign(added.definition.length, attribute->initial);
      state.attributes.push_back(added);
    } else if (const auto* update = std::get_if<ExogenousUpdate>(&records[i])) {
      for (Attribute& target : state.attributes) {
        if (target.definition.name != update->name) continue;
        ++target.version;
        for (const auto& [index, value] : update->elements) target.values[index] = value;
      }
    } else if (const auto* schedule = std::get_if<ScheduleDefinition>(&records[i])) {
      state.alive[schedule->name] = static_cast<uint32_t>(state.names.size());
      state.names.push_back(schedule->name);
    } else {
      state.alive.erase(std::get<ScheduleRemoval>(records[i]).name);
    }
  }
  return state;
}

void expect_equal(const Snapshot& snapshot, const Replayed& state, const ScheduleSet& loaded) {
  ASSERT_EQ(snapshot.attributes.size(), state.attributes.size());
  for (size_t i = 0; i < snapshot.attributes.size(); ++i) {
    ASSERT_EQ(snapshot.attributes[i].id, i);
    ASSERT_EQ(snapshot.attributes[i].definition, state.attributes[i].definition);
    ASSERT_EQ(snapshot.attributes[i].source, state.attributes[i].source);
    ASSERT_EQ(snapshot.attributes[i].version, state.attributes[i].version);
    ASSERT_EQ(snapshot.attributes[i].values, state.attributes[i].values);
  }
  std::set<uint32_t> expected;
  for (const auto& [name, id] : state.alive) {
    if (loaded.test(id)) expected.insert(id);
  }
  std::vector<uint32_t> ids;
  for (const Schedule& schedule : snapshot.schedules) ids.push_back(schedule.id);
  ASSERT_EQ(ids, std::vector<uint32_t>(expected.begin(), expected.end()));
  ASSERT_EQ(snapshot.replaces.size(), state.names.size());
}

// A snapshot at any position is what a replay of that many records gives, also after older values were dropped; and the
// digest tells any two of them apart.
TEST(ContextLog, SnapshotsEqualAReplay) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    Random random(seed);
    ContextLog log(seed + 1);
    std::vector<Record> records;
    uint64_t kept_from = 0;
    std::map<uint64_t, std::pair<uint64_t, std::vector<uint64_t>>> by_digest;
    for (int i = 0; i < 150; ++i) {
      records.push_back(random_record(random, log));
      add(log, records.back());
      if (random.chance(0.1)) {
        kept_from = std::max(kept_from, random.below(log.position() + 1));
        log.forget_before(kept_from);
      }
      const uint64_t position = random.below(log.position() + 1);
      const Replayed state = replay(records, position);
      ScheduleSet loaded;
      for (uint32_t id = 0; id < state.names.size(); ++id) loaded.set(id, random.chance(0.8));
      const Result<Snapshot> snapshot = log.snapshot(position, loaded);
      ASSERT_EQ(snapshot.ok(), position >= kept_from);
      if (!snapshot.ok()) continue;
      expect_equal(*snapshot, state, loaded);
      std::vector<uint64_t> alive{position};
      for (const Schedule& schedule : snapshot->schedules) alive.push_back(schedule.id);
      const auto [known, is_new] = by_digest.try_emplace(snapshot->digest, position, alive);
      ASSERT_TRUE(is_new || known->second == std::make_pair(position, alive));
    }
    ASSERT_FALSE(log.snapshot(log.position() + 1, {}).ok());
    ScheduleSet unknown;
    unknown.set(log.schedules());
    ASSERT_FALSE(log.snapshot(log.position(), unknown).ok());
  }
}

// The digest follows content: equal logs give equal ones, a value that differs gives another.
TEST(ContextLog, DigestFollowsContent) {
  const auto digest_with = [](uint64_t id, double value, const char* usable) {
    ContextLog log(id);
    add(log, exogenous("h", 2));
    add(log, ExogenousUpdate{"h", {{1, value}}});
    ScheduleDefinition schedule = ring("s");
    schedule.usable = usable;
    add(log, schedule);
    return log.snapshot(3, set_of({0}))->digest;
  };
  EXPECT_EQ(digest_with(1, 0.5, "1"), digest_with(1, 0.5, "1"));
  EXPECT_NE(digest_with(1, 0.5, "1"), digest_with(2, 0.5, "1"));
  EXPECT_NE(digest_with(1, 0.5, "1"), digest_with(1, 0.25, "1"));
  EXPECT_NE(digest_with(1, 0.5, "1"), digest_with(1, 0.5, "0"));
}

// A long job: what was passed by all costs nothing more, and nothing in a snapshot grows with the number of updates.
TEST(ContextLog, CarriesALongJob) {
  ContextLog log(7);
  add(log, exogenous("h", 64, 1));
  for (uint64_t i = 0; i < 1000; ++i) add(log, ring(name_of("s", i)));
  ScheduleSet loaded;
  for (uint32_t i = 0; i < 1000; ++i) loaded.set(i);
  for (uint64_t i = 0; i < 100000; ++i) {
    add(log, ExogenousUpdate{"h", {{static_cast<uint32_t>(i % 64), static_cast<double>(i)}}});
    if (i % 100 == 0) log.forget_before(log.position() - 50);
  }
  const Result<Snapshot> newest = log.snapshot(log.position(), loaded);
  ASSERT_TRUE(newest.ok());
  EXPECT_EQ(newest->attributes[0].version, 100000u);
  EXPECT_EQ(newest->attributes[0].values[(100000 - 1) % 64], 99999);
  EXPECT_EQ(newest->schedules.size(), 1000u);
  const Result<Snapshot> older = log.snapshot(log.position() - 40, loaded);
  ASSERT_TRUE(older.ok());
  EXPECT_EQ(older->attributes[0].version, 100000u - 40);
  EXPECT_EQ(older->attributes[0].values[(100000 - 41) % 64], 99999 - 40);
}

}  // namespace
}  // namespace theseus
