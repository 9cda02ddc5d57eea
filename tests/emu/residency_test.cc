// Two communicators on one GPU whose thread blocks do not all fit at once. The GPU has room for no more than it says,
// and starts kernels in the order in which they come, so whatever is launched beside what it waits for hangs.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "drivers/cuda/emu.h"
#include "gpu_ranks.h"

namespace theseus {
namespace {

using testing::driver;
using testing::GpuMemory;
using testing::GpuRanks;

constexpr int kDevice = 1;
constexpr int kRanks = 4;

class GpuResidency : public ::testing::Test {
 protected:
  struct Side {
    GpuRanks ranks{std::vector<int>(kRanks, kDevice)};
    std::vector<std::unique_ptr<GpuMemory>> memory;

    Side() {
      const std::vector<int32_t> ones(1000, 1);
      for (int rank = 0; rank < kRanks; ++rank) {
        memory.push_back(std::make_unique<GpuMemory>(kDevice, ones.data(), 4000));
      }
    }
    // AllReduce with a thread block a connection: 2 (n - 1) on each rank.
    CollectiveCall call(int rank) {
      CollectiveCall call;
      call.send = call.recv = memory[static_cast<size_t>(rank)]->at();
      call.count = 1000;
      call.type = DataType::Int32;
      call.stream = ranks.stream(rank).get();
      return call;
    }
    void submit(int rank) { EXPECT_OK(ranks[rank].submit(call(rank))); }
    // All ranks, for the first time: what is made then is not to be made under the limit.
    void warm_up() {
      std::vector<CollectiveCall> calls;
      for (int rank = 0; rank < kRanks; ++rank) calls.push_back(call(rank));
      EXPECT_OK(ranks.run(calls));
    }
    void wait() {
      for (int rank = 0; rank < kRanks; ++rank) EXPECT_OK(ranks.stream(rank).wait());
    }
    int32_t value() {
      std::vector<int32_t> values(1000);
      memory[0]->read(values.data());
      EXPECT_EQ(values, std::vector<int32_t>(1000, values[0]));
      return values[0];
    }
  };

  void SetUp() override {
    x.warm_up();
    y.warm_up();
    Result<cuda::DeviceInfo> info = driver().device_info(kDevice);
    ASSERT_TRUE(info.ok()) << info.status().message();
    emulator().limit_room(kDevice, 2 * static_cast<uint64_t>(info->multiprocessors));
  }
  void TearDown() override { emulator().limit_room(kDevice, 0); }

  static cuda::Emulator& emulator() { return static_cast<cuda::Emulator&>(driver()); }

  Side x, y;
};

TEST_F(GpuResidency, CommunicatorsThatDoNotFitTakeTurns) {
  constexpr int kRounds = 5;
  for (int round = 0; round < kRounds; ++round) {
    for (int rank = 0; rank < kRanks; ++rank) {
      x.submit(rank);
      y.submit(rank);
    }
  }
  x.wait();
  y.wait();
  int32_t expected = kRanks;
  for (int round = 0; round < kRounds; ++round) expected *= kRanks;
  EXPECT_EQ(x.value(), expected);
  EXPECT_EQ(y.value(), expected);
}

// The second one waits on the GPU, not in the call.
TEST_F(GpuResidency, CallsReturnWhereTheirTurnIsNotYet) {
  std::atomic<bool> open{false};
  const auto hold = [](void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
  };
  EXPECT_OK(driver().call_host(kDevice, x.ranks.stream(0).get(), hold, &open));
  for (int rank = 0; rank < kRanks; ++rank) x.submit(rank);
  for (int rank = 0; rank < kRanks; ++rank) y.submit(rank);
  EXPECT_FALSE(y.ranks.stream(0).idle());
  open.store(true);
  x.wait();
  y.wait();
  EXPECT_EQ(x.value(), kRanks * kRanks);
  EXPECT_EQ(y.value(), kRanks * kRanks);
}

}  // namespace
}  // namespace theseus
