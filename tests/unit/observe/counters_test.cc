#include "observe/counters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace theseus {
namespace {

CollectiveSnapshot snapshot_of(Collective collective) {
  for (const CollectiveSnapshot& one : take_snapshot().collectives) {
    if (one.collective == collective) return one;
  }
  return {collective, 0, 0, 0};
}

// Requests and bytes of all communicators add up, by collective, of those that are gone too; what never ran is not
// listed.
TEST(Counters, AddUpOverCommunicators) {
  const CollectiveSnapshot before = snapshot_of(Collective::Gather);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      RequestCounters counters;
      for (int n = 0; n < 1000; ++n) counters.count(Collective::Gather, 3);
    });
  }
  for (std::thread& thread : threads) thread.join();
  RequestCounters live;
  live.count_failure(Collective::Gather);
  const CollectiveSnapshot after = snapshot_of(Collective::Gather);
  EXPECT_EQ(after.requests - before.requests, 4000u);
  EXPECT_EQ(after.bytes - before.bytes, 12000u);
  EXPECT_EQ(after.failures - before.failures, 1u);
  const std::vector<CollectiveSnapshot> all = take_snapshot().collectives;
  EXPECT_TRUE(std::none_of(all.begin(), all.end(),
                           [](const CollectiveSnapshot& one) { return one.collective == Collective::Scatter; }));
}

// A flow is one pair of host and rail, and shows up in the snapshot with what was counted.
TEST(Counters, ListFlowsByHostAndRail) {
  flow_counters("counters-host", 0).bytes += 10;
  flow_counters("counters-host", 1).bytes += 20;
  flow_counters("counters-host", 1).bytes += 5;
  std::vector<FlowSnapshot> mine;
  for (const FlowSnapshot& flow : take_snapshot().flows) {
    if (flow.host == "counters-host") mine.push_back(flow);
  }
  ASSERT_EQ(mine.size(), 2u);
  EXPECT_EQ(mine[0].bytes, 10u);
  EXPECT_EQ(mine[1].rail, 1);
  EXPECT_EQ(mine[1].bytes, 25u);
}

// Time counts as backlogged while any port of the flow has data waiting, and only then.
TEST(Counters, BacklogLastsWhileAnyPortWaits) {
  FlowCounters& flow = flow_counters("backlog-host", 0);
  const auto backlogged = [] {
    for (const FlowSnapshot& one : snapshot_flows()) {
      if (one.host == "backlog-host") return one.backlogged_ns;
    }
    return uint64_t{0};
  };
  EXPECT_EQ(backlogged(), 0u);
  flow.begin_backlog();
  flow.begin_backlog();
  flow.end_backlog();
  const uint64_t during = backlogged();
  while (backlogged() == during) std::this_thread::yield();  // the clock runs on
  flow.end_backlog();
  const uint64_t total = backlogged();
  EXPECT_GT(total, during);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(backlogged(), total);
}

}  // namespace
}  // namespace theseus
