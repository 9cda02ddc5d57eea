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

// Time counts as backlogged while any port of the flow has data waiting or unacknowledged, once however many have, and
// only then.
TEST(Counters, BacklogLastsWhileAnyPortWaits) {
  FlowCounters& flow = flow_counters("backlog-host", 0);
  FlowMeter first(flow), second(flow);
  first.handed_over(100, 1);
  first.sample(1000, 100, 0, false);
  EXPECT_EQ(flow.backlogged_ns, 0u) << "what the socket took at once has not waited";
  first.begin_backlog(1000);
  second.begin_backlog(1200);
  EXPECT_EQ(flow.backlogged_ports, 2u);
  first.sample(1500, 60, 0, true);
  second.sample(1600, 0, 0, false);
  EXPECT_EQ(flow.backlogged_ns, 600u);
  EXPECT_EQ(flow.acknowledged, 40u);
  first.sample(1900, 30, 0, false);  // nothing waits, but the peer lacks some of it
  first.sample(2000, 0, 0, false);
  EXPECT_EQ(flow.backlogged_ns, 1000u);
  EXPECT_EQ(flow.backlogged_bytes, 100u);
  EXPECT_EQ(flow.backlogged_ports, 0u);
  first.handed_over(50, 1);
  first.sample(5000, 0, 0, false);
  EXPECT_EQ(flow.backlogged_ns, 1000u);
  EXPECT_EQ(flow.backlogged_bytes, 100u);
  EXPECT_EQ(flow.acknowledged, 150u);
}

// A peer that does not read is no slow network.
TEST(Counters, BacklogDoesNotCountTheReceiversPauses) {
  FlowCounters& flow = flow_counters("pausing-host", 0);
  FlowMeter meter(flow);
  meter.handed_over(100, 1);
  meter.begin_backlog(1000);
  meter.sample(3000, 80, 1500, true);
  EXPECT_EQ(flow.backlogged_ns, 500u);
  meter.sample(4000, 0, 1500, false);
  EXPECT_EQ(flow.backlogged_ns, 1500u);
}

// A port that is gone leaves no backlog behind.
TEST(Counters, BacklogEndsWithItsPort) {
  FlowCounters& flow = flow_counters("leaving-host", 0);
  {
    FlowMeter meter(flow);
    meter.begin_backlog(1);
    EXPECT_EQ(flow.backlogged_ports, 1u);
  }
  EXPECT_EQ(flow.backlogged_ports, 0u);
}

}  // namespace
}  // namespace theseus
