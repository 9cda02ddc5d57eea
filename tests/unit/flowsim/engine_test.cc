// The engine against closed forms: what a few flows, tasks and links must do can be worked out by hand.
#include "flowsim/engine.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

namespace theseus::flowsim {
namespace {

using Ids = std::vector<int32_t>;

// Adds what must be right, and runs.
struct Scene {
  Network network;

  int32_t link(double capacity, double contention = 0) { return *network.add_link(capacity, contention); }
  int32_t flow(const Ids& path, const Flow& flow, const Ids& after = {}) {
    return *network.add_flow(flow, path, after);
  }
  int32_t task(const Task& task, const Ids& after = {}) { return *network.add_task(task, after); }
  void change(int32_t link, double time, double capacity) {
    ASSERT_TRUE(network.change_capacity(link, time, capacity).ok());
  }
  Outcome run(const Options& options = {}) const {
    Result<Engine> engine = Engine::create(network, options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    while (!engine->done()) {
      const Status status = engine->advance(1);
      EXPECT_TRUE(status.ok()) << status.message();
      if (!status.ok()) break;
    }
    return engine->take_outcome();
  }
  std::string failure() const {
    Result<Engine> engine = Engine::create(network);
    if (!engine.ok()) return engine.status().message();
    return engine->advance(1000).message();
  }
};

void expect_times(const std::vector<double>& found, std::initializer_list<double> expected) {
  ASSERT_EQ(found.size(), expected.size());
  size_t i = 0;
  for (const double each : expected) {
    EXPECT_DOUBLE_EQ(found[i], each) << "activity " << i;
    ++i;
  }
}

TEST(Engine, OneFlowTakesSizeOverCapacity) {
  Scene scene;
  const int32_t wide = scene.link(10), narrow = scene.link(4);
  scene.flow({wide, narrow}, {.size = 20});
  const Outcome outcome = scene.run();
  expect_times(outcome.finish, {5});
  EXPECT_DOUBLE_EQ(outcome.end, 5);
  expect_times(outcome.link_bytes, {20, 20});
  expect_times(outcome.link_busy, {5, 5});
  expect_times(outcome.link_offered, {50, 20});
}

TEST(Engine, WhoIsLeftTakesOver) {
  Scene scene;
  const int32_t link = scene.link(10);
  scene.flow({link}, {.size = 10});
  scene.flow({link}, {.size = 20});
  scene.flow({link}, {.size = 10, .start = 3});
  expect_times(scene.run().finish, {2, 3, 4});
}

TEST(Engine, WeightsShareInProportion) {
  Scene scene;
  const int32_t link = scene.link(12);
  scene.flow({link}, {.size = 9, .weight = 3});
  scene.flow({link}, {.size = 9, .weight = 1});
  // 9 and 3 a second for a second, then 12 for the 6 that are left.
  expect_times(scene.run().finish, {1, 1.5});
}

// Bertsekas and Gallager's parking lot: the long flow gets its share of the most crowded link, the others the rest.
TEST(Engine, BottlenecksChain) {
  Scene scene;
  const int32_t a = scene.link(2), b = scene.link(10), c = scene.link(9.5);
  scene.flow({a, b}, {.size = 100});
  scene.flow({a}, {.size = 100});
  scene.flow({b, c}, {.size = 100});
  scene.flow({c}, {.size = 100});
  const Outcome outcome = scene.run({.until = 1});
  expect_times(outcome.moved, {1, 1, 4.75, 4.75});
}

TEST(Engine, AnArrivalIsFeltAlongTheChain) {
  Scene scene;
  const int32_t a = scene.link(6), b = scene.link(14), c = scene.link(20);
  scene.flow({a, b}, {.size = 1000});  // 6, then 3
  scene.flow({b, c}, {.size = 1000});  // 8 of b, then 10 of c
  scene.flow({c}, {.size = 1000});     // 12, then 10
  scene.flow({a}, {.size = 1000, .start = 1});
  expect_times(scene.run({.until = 1}).moved, {6, 8, 12, 0});
  expect_times(scene.run({.until = 2}).moved, {9, 18, 22, 3});
}

TEST(Engine, LowerPrioritiesGetWhatIsLeft) {
  Scene scene;
  const int32_t a = scene.link(10), b = scene.link(4);
  scene.flow({a, b}, {.size = 8, .priority = 0});
  scene.flow({a}, {.size = 12, .priority = 1});
  scene.flow({b}, {.size = 4, .priority = 7});
  scene.flow({a}, {.size = 10, .priority = 200});
  // 4, 6, 0 and 0 a second until 2; the third has b for itself from 2 to 3, the last has a.
  expect_times(scene.run().finish, {2, 2, 3, 3});
}

TEST(Engine, AHigherPriorityPreempts) {
  Scene scene;
  const int32_t link = scene.link(10);
  scene.flow({link}, {.size = 20, .priority = 1});
  scene.flow({link}, {.size = 10, .priority = 0, .start = 1});
  const Outcome outcome = scene.run({.timeline = true});
  expect_times(outcome.finish, {3, 2});
  ASSERT_EQ(outcome.timeline.size(), 6u);
  EXPECT_EQ(outcome.timeline[1].time, 1);
  double idle = 0;
  for (const RateChange& each : outcome.timeline) idle += each.flow == 0 && each.time == 1 && each.rate == 0;
  EXPECT_EQ(idle, 1);
}

TEST(Engine, CapacityChangesAtOnce) {
  Scene scene;
  const int32_t link = scene.link(10);
  scene.flow({link}, {.size = 26});
  scene.change(link, 2, 0);
  scene.change(link, 1, 5);
  scene.change(link, 4, 1);
  scene.change(link, 4, 11);  // the last one given for a time holds
  const Outcome outcome = scene.run();
  expect_times(outcome.finish, {5});
  expect_times(outcome.link_busy, {3});
  expect_times(outcome.link_offered, {26});
}

TEST(Engine, LatencyComesBeforeTheBytes) {
  Scene scene;
  const int32_t link = scene.link(1);
  scene.flow({link}, {.size = 2});
  scene.flow({link}, {.size = 1, .latency = 1});
  scene.flow({}, {.size = 7, .latency = 0.5});
  scene.flow({link}, {.size = 0, .latency = 0.25});
  const Outcome outcome = scene.run();
  expect_times(outcome.start, {0, 0, 0, 0});
  expect_times(outcome.finish, {3, 3, 0.5, 0.25});
}

TEST(Engine, DependenciesAcrossFlowsAndTasks) {
  Scene scene;
  const int32_t link = scene.link(2);
  const int32_t gpu = scene.network.add_executor();
  const int32_t first = scene.task({.duration = 1, .executor = gpu});
  const int32_t send = scene.flow({link}, {.size = 4}, {first});
  const int32_t second = scene.task({.duration = 5, .executor = gpu}, {first});
  scene.task({.duration = 1, .executor = gpu, .start = 7}, {send, second});
  const Outcome outcome = scene.run();
  expect_times(outcome.start, {0, 1, 1, 7});
  expect_times(outcome.finish, {1, 3, 6, 8});
  expect_times(outcome.executor_busy, {7});
}

TEST(Engine, AnExecutorTakesPriorityThenAgeThenId) {
  Scene scene;
  const int32_t gpu = scene.network.add_executor();
  scene.task({.duration = 2, .executor = gpu, .priority = 5});
  scene.task({.duration = 1, .executor = gpu, .priority = 5, .start = 1});
  scene.task({.duration = 1, .executor = gpu, .priority = 5, .start = 0.5});
  scene.task({.duration = 1, .executor = gpu, .priority = 1, .start = 1.5});
  scene.task({.duration = 1, .executor = gpu, .priority = 5, .start = 1});
  scene.task({.duration = 1});
  expect_times(scene.run().start, {0, 4, 3, 2, 5, 0});
}

TEST(Engine, PriorityDecidesBetweenTasksOfOneInstant) {
  Scene scene;
  const int32_t gpu = scene.network.add_executor();
  const int32_t zero = scene.task({});
  scene.task({.duration = 1, .executor = gpu, .priority = 1}, {zero});
  scene.task({.duration = 1, .executor = gpu, .priority = 0}, {zero});
  expect_times(scene.run().start, {0, 1, 0});
}

TEST(Engine, ContentionTakesFromEverybody) {
  Scene scene;
  const int32_t link = scene.link(12, 0.25);
  for (int i = 0; i < 3; ++i) scene.flow({link}, {.size = 8});
  scene.flow({link}, {.size = 12, .start = 4});
  // Three at once: 12 / 1.5 = 8 for all; alone: 12.
  expect_times(scene.run().finish, {3, 3, 3, 5});
}

TEST(Engine, ACoflowThatEndsTogetherIsOneInstant) {
  Scene scene;
  const int32_t link = scene.link(0.3);
  // Shares in proportion to the sizes: all end together, but for rounding.
  for (int i = 1; i <= 1000; ++i) scene.flow({link}, {.size = 0.1 * i, .weight = 0.3 * i});
  const Outcome outcome = scene.run();
  EXPECT_EQ(outcome.instants, 2);
  EXPECT_NEAR(outcome.end, 50050 / 0.3, 1e-6);
}

// An event too near to advance a late clock must still be handled, and must not be handled for ever.
TEST(Engine, TinyFlowsAtLateTimesEnd) {
  Scene scene;
  const int32_t link = scene.link(1e12);
  for (int i = 0; i < 100; ++i) scene.flow({link}, {.size = 1e-3 * (i + 1), .start = 1e9});
  const Outcome outcome = scene.run();
  EXPECT_LE(outcome.instants, 101);
  EXPECT_DOUBLE_EQ(outcome.end, 1e9);
}

TEST(Engine, ExtremeWeightsStayFair) {
  Scene scene;
  const int32_t a = scene.link(1), b = scene.link(1);
  scene.flow({a}, {.size = 1, .weight = 1e9});
  scene.flow({a, b}, {.size = 1, .weight = 1e-9});
  scene.flow({b}, {.size = 1, .weight = 1e-9});
  expect_times(scene.run().finish, {1, 2, 1});
}

// Beside a weight of 1e9, one of 1e-9 is lost in a sum; it must have its share once the heavy flow has its own.
TEST(Engine, LightFlowsTakeWhatAHeavyOneLeaves) {
  Scene scene;
  const int32_t narrow = scene.link(0.25), wide = scene.link(1);
  scene.flow({narrow, wide}, {.size = 1, .weight = 1e9});
  scene.flow({wide}, {.size = 3, .weight = 1e-9});
  expect_times(scene.run().finish, {4, 4});
}

TEST(Engine, UntilLeavesTheRestUnfinished) {
  Scene scene;
  const int32_t link = scene.link(10);
  const int32_t flow = scene.flow({link}, {.size = 100});
  scene.task({.duration = 1}, {flow});
  const Outcome outcome = scene.run({.until = 4});
  expect_times(outcome.finish, {kNever, kNever});
  expect_times(outcome.start, {0, kNever});
  expect_times(outcome.moved, {40, 0});
  expect_times(outcome.link_busy, {4});
  EXPECT_EQ(outcome.end, 4);
}

TEST(Engine, NothingTakesNoTime) {
  const Outcome outcome = Scene{}.run();
  EXPECT_EQ(outcome.end, 0);
  EXPECT_EQ(outcome.instants, 0);
}

TEST(Engine, StarvedFlowsAreNamed) {
  Scene scene;
  const int32_t good = scene.link(1), dead = scene.link(0);
  scene.flow({good}, {.size = 1});
  scene.flow({good, dead}, {.size = 3});
  EXPECT_EQ(scene.failure(),
            "flow 1 is starved: from 1 s on, with 3 of 3 bytes left, link 1 gives it nothing, and no capacity change "
            "follows");
}

TEST(Engine, CyclesAreNamed) {
  Scene scene;
  const int32_t link = scene.link(1);
  const int32_t a = scene.flow({link}, {.size = 1});
  const int32_t b = scene.task({.duration = 1}, {a});
  const int32_t c = scene.flow({link}, {.size = 1}, {b});
  scene.task({}, {c});
  ASSERT_TRUE(scene.network.add_dependency(c, b).ok());
  EXPECT_EQ(scene.failure(), "dependencies form a cycle: task 1 after flow 2 after task 1");
}

TEST(Engine, UntilMustBeATime) {
  EXPECT_FALSE(Engine::create(Network{}, {.until = -1}).ok());
  EXPECT_FALSE(Engine::create(Network{}, {.until = kNever - kNever}).ok());
}

}  // namespace
}  // namespace theseus::flowsim
