// What a network refuses, in words that name the thing; and that a refusal leaves it as it was.
#include "flowsim/network.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace theseus::flowsim {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class NetworkTest : public testing::Test {
 protected:
  NetworkTest() {
    EXPECT_TRUE(network.add_link(1).ok());
    EXPECT_TRUE(network.add_link(1).ok());
    network.add_executor();
    EXPECT_TRUE(network.add_task({}).ok());
  }
  std::string flow(const Flow& flow, const std::vector<int32_t>& path, const std::vector<int32_t>& after = {}) {
    return network.add_flow(flow, path, after).status().message();
  }
  Network network;
};

TEST_F(NetworkTest, RefusesBadFlows) {
  EXPECT_EQ(flow({}, {2}), "flow 1: there is no link 2; the network has 2");
  EXPECT_EQ(flow({}, {-1}), "flow 1: there is no link -1; the network has 2");
  EXPECT_EQ(flow({}, {1, 0, 1}), "flow 1: link 1 is twice in its path");
  EXPECT_EQ(flow({.size = -1}, {0}), "flow 1: size is -1, not a finite number of at least 0");
  EXPECT_EQ(flow({.size = kNan}, {0}), "flow 1: size is nan, not a finite number of at least 0");
  EXPECT_EQ(flow({.priority = 256}, {0}), "flow 1: priority 256 is not from 0 (first) to 255");
  EXPECT_EQ(flow({.weight = 0}, {0}), "flow 1: weight is 0, not a finite number above 0");
  EXPECT_EQ(flow({.start = -2}, {0}), "flow 1: start is -2, not a finite number of at least 0");
  EXPECT_EQ(flow({.latency = kNan}, {0}), "flow 1: latency is nan, not a finite number of at least 0");
  EXPECT_EQ(flow({}, {0}, {1}), "flow 1: cannot come after activity 1; the network has 1 so far");
  EXPECT_EQ(network.activities(), 1);
  EXPECT_TRUE(network.dependencies().empty());
}

TEST_F(NetworkTest, RefusesBadTasks) {
  EXPECT_EQ(network.add_task({.executor = 1}).status().message(), "task 1: there is no executor 1; the network has 1");
  EXPECT_EQ(network.add_task({.duration = kNan}).status().message(),
            "task 1: duration is nan, not a finite number of at least 0");
  EXPECT_EQ(network.activities(), 1);
}

TEST_F(NetworkTest, RefusesBadLinksAndChanges) {
  EXPECT_EQ(network.add_link(-1).status().message(), "link 2: capacity is -1, not a finite number of at least 0");
  EXPECT_FALSE(network.add_link(1, kNan).ok());
  EXPECT_FALSE(network.change_capacity(2, 0, 1).ok());
  EXPECT_FALSE(network.change_capacity(0, -1, 1).ok());
  EXPECT_FALSE(network.change_capacity(0, 0, kNan).ok());
  EXPECT_EQ(network.add_dependency(0, 5).message(), "dependency of 5 on 0: there is no activity 5; the network has 1");
  EXPECT_EQ(network.links(), 2);
}

TEST_F(NetworkTest, GoesBackToAMark) {
  const Network::Mark mark = network.mark();
  EXPECT_EQ(flow({.size = 1}, {0, 1}, {0}), "");
  network.back_to(mark);
  EXPECT_EQ(network.activities(), 1);
  EXPECT_TRUE(network.dependencies().empty());
  EXPECT_EQ(flow({.size = 1}, {1}), "");
  ASSERT_EQ(network.path(1).size(), 1u);
  EXPECT_EQ(network.path(1)[0], 1);
}

TEST_F(NetworkTest, AnActivityThatWaitsForItselfIsACycle) {
  ASSERT_TRUE(network.add_dependency(0, 0).ok());
  EXPECT_EQ(build_graph(network).status().message(), "dependencies form a cycle: task 0 after task 0");
}

TEST_F(NetworkTest, LongCyclesAreShortened) {
  for (int i = 1; i < 100; ++i) ASSERT_TRUE(network.add_task({}, std::vector<int32_t>{i - 1}).ok());
  ASSERT_TRUE(network.add_dependency(99, 0).ok());
  const std::string message = build_graph(network).status().message();
  EXPECT_TRUE(message.ends_with("after ... after task 0")) << message;
}

}  // namespace
}  // namespace theseus::flowsim
