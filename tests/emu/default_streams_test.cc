// Collectives on the streams that nobody creates: the legacy default stream, and the default stream of each thread.
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

class Hold {
 public:
  void on(cuda::Stream stream) { EXPECT_OK(driver().call_host(0, stream, &Hold::wait, &open_)); }
  void let_go() { open_.store(true); }

 private:
  static void wait(void* open) {
    while (!static_cast<std::atomic<bool>*>(open)->load()) std::this_thread::yield();
  }
  std::atomic<bool> open_{false};
};

class GpuDefaultStreams : public ::testing::Test {
 protected:
  bool idle(cuda::Stream stream) {
    Result<bool> done = driver().query(0, stream);
    EXPECT_TRUE(done.ok()) << done.status().message();
    return done.ok() && *done;
  }
  std::vector<int32_t> result() {
    std::vector<int32_t> values(1000);
    first.read(values.data());
    return values;
  }

  GpuRanks ranks{{0, 0}};
  std::vector<int32_t> ones = std::vector<int32_t>(1000, 1);
  GpuMemory first{0, ones.data(), 4000};
  GpuMemory second{0, ones.data(), 4000};
};

// What a user has on an ordinary stream is done before a collective on the default one, as with any kernel there. Two
// ranks on one stream could never meet, so one of them is on a stream of its own.
TEST_F(GpuDefaultStreams, TheLegacyOneWaitsForBlockingStreams) {
  auto& emulator = static_cast<cuda::Emulator&>(driver());
  Result<cuda::Stream> blocking = emulator.create_blocking_stream(0);
  ASSERT_TRUE(blocking.ok()) << blocking.status().message();
  Hold hold;
  hold.on(*blocking);
  EXPECT_OK(driver().fill(0, first.at(), 0, 4000, *blocking));
  group_start();
  for (int rank = 0; rank < 2; ++rank) {
    CollectiveCall call;
    call.send = call.recv = (rank == 0 ? first : second).at();
    call.count = 1000;
    call.type = DataType::Int32;
    call.stream = rank == 0 ? nullptr : ranks.stream(1).get();
    EXPECT_OK(ranks[rank].submit(call));
  }
  EXPECT_OK(group_end());
  EXPECT_FALSE(idle(nullptr));
  hold.let_go();
  EXPECT_OK(driver().synchronize(0, cuda::Stream{}));
  EXPECT_OK(ranks.stream(1).wait());
  EXPECT_EQ(result(), ones);
  EXPECT_OK(driver().destroy_stream(0, *blocking));
}

// One handle, two streams: a communicator's requests still run one after the other.
TEST(GpuThreadStreams, RequestsOfTwoThreadsKeepTheirOrder) {
  GpuRanks ranks({0});
  std::vector<int32_t> ones(1000, 1), results(1000);
  GpuMemory from(0, ones.data(), 4000), middle(0, results.data(), 4000), to(0, results.data(), 4000);
  const auto copy = [&](GpuMemory& source, GpuMemory& target) {
    CollectiveCall call;
    call.send = source.at();
    call.recv = target.at();
    call.count = 1000;
    call.type = DataType::Int32;
    call.stream = cuda::per_thread_stream();
    EXPECT_OK(ranks[0].submit(call));
  };
  Hold hold;
  hold.on(cuda::per_thread_stream());
  copy(from, middle);
  std::thread([&] {
    copy(middle, to);
    Result<bool> done = driver().query(0, cuda::per_thread_stream());
    EXPECT_TRUE(done.ok() && !*done) << "the second request does not wait for the first";
    hold.let_go();
    EXPECT_OK(driver().synchronize(0, cuda::per_thread_stream()));
  }).join();
  to.read(results.data());
  EXPECT_EQ(results, ones);
}

TEST(GpuThreadStreams, NonBlockingCommunicatorsRefuseThem) {
  Result<UniqueId> id = Communicator::create_unique_id();
  ASSERT_TRUE(id.ok()) << id.status().message();
  CommConfig config;
  config.blocking = false;
  Result<Communicator*> made = Communicator::init(*id, 1, 0, config);
  ASSERT_TRUE(made.ok()) << made.status().message();
  while ((*made)->in_progress()) std::this_thread::yield();
  std::vector<int32_t> ones(1000, 1);
  GpuMemory memory(0, ones.data(), 4000);
  CollectiveCall call;
  call.send = call.recv = memory.at();
  call.count = 1000;
  call.type = DataType::Int32;
  call.stream = cuda::per_thread_stream();
  const Status refused = (*made)->submit(call);
  EXPECT_EQ(refused.code(), Code::InvalidUsage);
  EXPECT_NE(refused.message().find("per-thread default stream"), std::string::npos) << refused.message();
  EXPECT_OK(Communicator::destroy(*made));
}

}  // namespace
}  // namespace theseus
