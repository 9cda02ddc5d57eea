// Every collective goes through its communicator's resource tree: what it makes, keeps, migrates and lets go.
#include <gtest/gtest.h>

#include <functional>

#include "job_log_file.h"
#include "resource/family.h"

namespace theseus {
namespace {

using testing::all_reduce;
using testing::job_log;
using testing::JobLogWriter;
using testing::Ranks;
using testing::run_until_installed;
using testing::schedule;
using testing::sum_up_to;

ResourceTree& tree_of(Communicator& communicator) { return CommunicatorAccess::impl(communicator).plans->resources(); }

// Tags of the job log's schedules that anything is held for.
std::vector<uint64_t> scheduled_tags(Communicator& communicator) {
  std::vector<uint64_t> tags = tree_of(communicator).schedules();
  std::erase_if(tags, is_predefined);
  return tags;
}

// What a Broadcast of so many elements met.
uint8_t events_of(Communicator& communicator, size_t count) {
  Communicator::Impl& impl = CommunicatorAccess::impl(communicator);
  impl.tte = std::make_unique<TteRecorder>(1);
  std::vector<uint8_t> data(count, communicator.rank() == 0 ? 7 : 0);
  CollectiveCall call;
  call.collective = Collective::Broadcast;
  call.send = call.recv = data.data();
  call.count = count;
  call.type = DataType::Uint8;
  EXPECT_OK(communicator.submit(call));
  EXPECT_EQ(data, std::vector<uint8_t>(count, 7));
  const uint8_t events = impl.tte->samples().at(0).events;
  impl.tte.reset();
  return events;
}

// Runs requests on all ranks until `expected` holds of the schedule that they run. It changes before the same request
// on all ranks, so all stop at the same.
void run_until(Ranks& ranks, size_t count, const std::function<bool(const std::string&)>& expected) {
  ranks.run([&](Communicator& communicator) {
    for (int i = 0; i < 20'000; ++i) {
      if (expected(all_reduce(communicator, count))) {
        all_reduce(communicator, count);
        return;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    ADD_FAILURE() << "the context does not change";
  });
}
void run_until(Ranks& ranks, size_t count, const std::string& name) {
  run_until(ranks, count, [&](const std::string& chosen) { return chosen == name; });
}

constexpr auto kSelection = static_cast<uint8_t>(TteEvent::Selection);
constexpr auto kSetup = static_cast<uint8_t>(TteEvent::Setup);
constexpr auto kMigration = static_cast<uint8_t>(TteEvent::Migration);

// What is remembered costs no walk; another count shares all but its range; nothing stays pinned.
TEST(Resources, EqualRequestsFindThePathOfTheFirst) {
  Ranks ranks(2);
  run_until_installed(ranks, 3000);  // nothing changes from here on
  ranks.run([](Communicator& communicator) {
    EXPECT_EQ(events_of(communicator, 7) & (kSelection | kSetup), kSelection | kSetup);
    const TreeStatistics first = tree_of(communicator).statistics();
    for (int i = 0; i < 5; ++i) EXPECT_EQ(events_of(communicator, 7) & (kSelection | kSetup | kMigration), 0);
    const TreeStatistics again = tree_of(communicator).statistics();
    EXPECT_EQ(again.walks, first.walks);
    EXPECT_EQ(again.recalls, first.recalls + 5);
    EXPECT_EQ(events_of(communicator, 8) & (kSelection | kSetup), kSelection);
    const TreeStatistics other = tree_of(communicator).statistics();
    EXPECT_EQ(other.built.made, first.built.made);
    for (size_t layer = 0; layer < kLayers; ++layer) {
      EXPECT_EQ(other.layers[layer].vertices, first.layers[layer].vertices + (layer == 3 ? 1 : 0)) << layer;
    }
    EXPECT_EQ(tree_of(communicator).evictable(),
              other.layers[1].vertices + other.layers[2].vertices + other.layers[3].vertices);
  });
}

// Without room for anything, each request makes what it needs anew, and its result is right all the same; ranks need
// not have the same room.
TEST(Resources, ResultsAreRightWhateverTheRoom) {
  Ranks ranks(4);
  ranks.run([](Communicator& communicator) {
    ResourceTree& tree = tree_of(communicator);
    tree.set_budget(communicator.rank() % 2 == 0 ? 0 : 2000);
    for (int round = 0; round < 3; ++round) {
      for (const size_t count : {1, 100, 5000, 70'000}) {
        all_reduce(communicator, count);
        std::vector<int64_t> all(4 * count), own(count, communicator.rank());
        CollectiveCall call;
        call.collective = Collective::AllGather;
        call.send = own.data();
        call.recv = all.data();
        call.count = count;
        call.type = DataType::Int64;
        EXPECT_OK(communicator.submit(call));
        for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<int64_t>(i / count));
      }
    }
    size_t evicted = 0;
    for (const LayerStatistics& layer : tree.statistics().layers) evicted += layer.evicted;
    EXPECT_GT(evicted, 0u);
  });
}

// The requests of a group are all selected before the first one runs: none loses what it needs to a later one.
TEST(Resources, AGroupKeepsWhatItsRequestsNeed) {
  Ranks ranks(3);
  ranks.run([](Communicator& communicator) {
    ResourceTree& tree = tree_of(communicator);
    tree.set_budget(0);
    std::vector<std::vector<int64_t>> data;
    for (const size_t count : {3, 4000, 3, 90'000, 11}) data.emplace_back(count, communicator.rank() + 1);
    group_start();
    for (auto& values : data) {
      CollectiveCall call;
      call.send = call.recv = values.data();
      call.count = values.size();
      call.type = DataType::Int64;
      EXPECT_OK(communicator.submit(call));
    }
    EXPECT_OK(group_end());
    for (const auto& values : data) EXPECT_EQ(values, std::vector<int64_t>(values.size(), sum_up_to(3)));
    EXPECT_EQ(tree.statistics().retired, 0u);
    all_reduce(communicator, 2);
    EXPECT_LE(tree.statistics().layers[3].vertices, 1u) << "something is still pinned";
  });
}

// A schedule that replaces another is made from it: of an equal plan nothing is new, neither code nor connections.
// When both are gone, so is all that was held for them.
TEST(Resources, AReplacementMakesOnlyWhatDiffers) {
  JobLogWriter& log = job_log();
  Ranks ranks(3);
  const std::string usable = "ranks == 3 and count == 55";
  log.append(schedule("resources-old", "ring", usable));
  run_until(ranks, 55, "resources-old");
  std::vector<TreeStatistics> before(3);
  ranks.run([&](Communicator& communicator) {
    before[static_cast<size_t>(communicator.rank())] = tree_of(communicator).statistics();
    EXPECT_EQ(scheduled_tags(communicator).size(), 1u);
  });
  ScheduleDefinition replacement = schedule("resources-new", "ring", usable);
  replacement.replaces = "resources-old";
  log.append(replacement);
  run_until(ranks, 55, "resources-new");
  ranks.run([&](Communicator& communicator) {
    const TreeStatistics& old = before[static_cast<size_t>(communicator.rank())];
    const TreeStatistics now = tree_of(communicator).statistics();
    EXPECT_EQ(now.built.made, old.built.made);
    EXPECT_EQ(now.migrated.made, old.migrated.made);
    EXPECT_GT(now.migrated.shared, old.migrated.shared);
    EXPECT_EQ(now.migrated.opened, old.migrated.opened);
    EXPECT_EQ(scheduled_tags(communicator).size(), 1u) << "the path of the old one is the new one's now";
  });
  log.append(ScheduleRemoval{"resources-new"});
  log.append(ScheduleRemoval{"resources-old"});
  run_until(ranks, 55, [](const std::string& chosen) { return chosen.find("resources") == std::string::npos; });
  ranks.run([](Communicator& communicator) { EXPECT_TRUE(scheduled_tags(communicator).empty()); });
}

}  // namespace
}  // namespace theseus
