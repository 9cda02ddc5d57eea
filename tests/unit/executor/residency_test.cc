// Launches of several communicators on one GPU: what does not fit beside the others waits for them, and never for what
// waits for it.
#include "executor/residency.h"

#include <gtest/gtest.h>

#include "unit/drivers/driver_testing.h"

namespace theseus {
namespace {

using cuda::Emulator;
using cuda::expect_ok;
using cuda::Gate;
using cuda::take;

constexpr uint64_t kResident = 32;

class ResidencyTest : public ::testing::Test {
 protected:
  // One rank of a communicator with a stream of its own. A "launch" is work that waits for a gate.
  struct Rank {
    std::unique_ptr<Residency::Member> member;
    cuda::Stream stream;
    Gate gate;
    std::vector<cuda::Event> events;
  };

  Rank& rank(uint64_t communicator, int ranks = 1, int here = 1) {
    auto made = std::make_unique<Rank>();
    made->member = residency.join({CommId{communicator, 1}, ranks, here});
    made->stream = take(emulator.create_stream(0));
    ranks_.push_back(std::move(made));
    return *ranks_.back();
  }
  Status launch(Rank& rank, uint64_t blocks, bool captured = false) {
    THESEUS_TRY(rank.member->admit(blocks, kResident, rank.stream, captured));
    if (captured) return {};
    THESEUS_TRY(emulator.call_host(0, rank.stream, &Gate::wait, &rank.gate));
    rank.events.push_back(take(emulator.create_event(0)));
    THESEUS_TRY(emulator.record(0, rank.events.back(), rank.stream));
    rank.member->launched(rank.events.back());
    return {};
  }
  // Lets all launches of a rank end, and waits for that.
  void finish(Rank& rank) {
    rank.gate.open();
    for (const cuda::Event event : std::exchange(rank.events, {})) {
      expect_ok(emulator.synchronize(0, event));
      rank.member->left(event);
      expect_ok(emulator.destroy_event(0, event));
    }
  }
  // Whether the stream of `rank` waits for something else than its own gate.
  bool waits(Rank& rank) {
    rank.gate.open();
    const cuda::Event reached = take(emulator.create_event(0));
    expect_ok(emulator.record(0, reached, rank.stream));
    for (int i = 0; i < 50; ++i) {
      if (take(emulator.query(0, reached))) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  void TearDown() override {
    for (const auto& rank : ranks_) rank->gate.open();
    for (const auto& rank : ranks_) finish(*rank);
  }

  Emulator emulator{cuda::EmulatorOptions{}};
  Residency residency{emulator, 0};
  std::vector<std::unique_ptr<Rank>> ranks_;
};

TEST_F(ResidencyTest, WhatFitsRunsAtOnce) {
  Rank& first = rank(1);
  Rank& second = rank(2);
  expect_ok(launch(first, 16));
  expect_ok(launch(second, 16));
  EXPECT_FALSE(waits(second));
}

TEST_F(ResidencyTest, WhatDoesNotFitWaitsForTheOthers) {
  Rank& first = rank(1);
  Rank& second = rank(2);
  expect_ok(launch(first, 16));
  expect_ok(launch(second, 17));
  EXPECT_TRUE(waits(second));
  finish(first);
  expect_ok(emulator.synchronize(0, second.stream));
  // Once all is done the room is free again.
  finish(second);
  expect_ok(launch(first, 32));
  EXPECT_FALSE(waits(first));
}

// A communicator's requests follow each other, so its second one needs no more room than its first.
TEST_F(ResidencyTest, RequestsOfOneCommunicatorShareItsRoom) {
  Rank& first = rank(1);
  Rank& second = rank(2);
  expect_ok(launch(first, 16));
  expect_ok(launch(first, 16));
  expect_ok(launch(second, 16));
  EXPECT_FALSE(waits(second));
}

TEST_F(ResidencyTest, WhatNeverFitsIsRefused) {
  Rank& only = rank(1);
  EXPECT_TRUE(only.member->fits(32, kResident));
  EXPECT_FALSE(only.member->fits(33, kResident));
  const Status refused = launch(only, 33);
  EXPECT_EQ(refused.code(), Code::InvalidUsage);
  EXPECT_NE(refused.message().find("33 thread blocks"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("THESEUS_ALGO"), std::string::npos) << refused.message();
}

// Ranks of a communicator wait for each other: their kernels have to be there together.
TEST_F(ResidencyTest, RanksOnOneGpuCountTogether) {
  Rank& one = rank(1, 2, 2);
  EXPECT_TRUE(one.member->fits(16, kResident));
  EXPECT_FALSE(one.member->fits(17, kResident));
}

// The ranks of other processes have their share, for every communicator of this process.
TEST_F(ResidencyTest, ProcessesDivideAGpuByTheirRanks) {
  Rank& alone = rank(1);
  EXPECT_TRUE(alone.member->fits(32, kResident));
  {
    Rank& shared = rank(2, 4, 1);
    EXPECT_TRUE(shared.member->fits(8, kResident));
    EXPECT_FALSE(shared.member->fits(9, kResident));
    EXPECT_FALSE(alone.member->fits(9, kResident));
  }
  ranks_.pop_back();
  EXPECT_TRUE(alone.member->fits(32, kResident));
}

// The case that serialising rank by rank would hang: both ranks of Y have to run before X may, though the second one of
// them launches after X's first.
TEST_F(ResidencyTest, NobodyWaitsForWhatWaitsForIt) {
  Rank& y0 = rank(7, 2, 2);
  Rank& y1 = rank(7, 2, 2);
  Rank& x0 = rank(8, 2, 2);
  Rank& x1 = rank(8, 2, 2);
  expect_ok(launch(y0, 10));
  expect_ok(launch(x0, 10));
  expect_ok(launch(x1, 10));
  expect_ok(launch(y1, 10));
  EXPECT_FALSE(waits(y1));
  EXPECT_TRUE(waits(x0));
  EXPECT_TRUE(waits(x1));
  finish(y0);
  finish(y1);
  finish(x0);
  finish(x1);
}

// Graphs launch when their user likes: what they captured has its room as long as they live.
TEST_F(ResidencyTest, CapturedLaunchesKeepTheirRoom) {
  Rank& graph = rank(1);
  Rank& other = rank(2);
  expect_ok(launch(graph, 20, /*captured=*/true));
  expect_ok(launch(other, 12));
  EXPECT_FALSE(waits(other));
  const Status refused = launch(other, 13);
  EXPECT_EQ(refused.code(), Code::InvalidUsage);
  EXPECT_NE(refused.message().find("captured graphs"), std::string::npos) << refused.message();
  graph.member->forget_captured();
  expect_ok(launch(other, 13));
}

// A gate names events of others, which may end, with their communicator, before who waits for them comes.
TEST_F(ResidencyTest, GatesForgetWhatIsGone) {
  Rank& first = rank(1, 2, 2);
  Rank& second = rank(1, 2, 2);
  Rank& other = rank(2);
  expect_ok(launch(other, 32));
  expect_ok(launch(first, 16));
  EXPECT_TRUE(waits(first));
  finish(other);
  ranks_.pop_back();
  expect_ok(launch(second, 16));
  EXPECT_FALSE(waits(second));
}

}  // namespace
}  // namespace theseus
