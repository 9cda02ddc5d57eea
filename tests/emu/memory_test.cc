// GPU memory that is let go of while kernels, or another process, may still use it.
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "drivers/cuda/retired.h"
#include "gpu_ranks.h"
#include "unit/runtime/rank_processes.h"

namespace theseus {
namespace {

using testing::driver;
using testing::GpuMemory;
using testing::GpuRanks;
using testing::in_processes;

cuda::Retired& retired() { return cuda::Retired::of(driver(), 0); }

// Gives back what may be, until nothing waits; false where something still does after a while.
bool all_given_back() {
  for (int i = 0; i < 1000; ++i) {
    retired().sweep();
    if (retired().waiting() == 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

CollectiveCall sum_of(GpuMemory& memory, cuda::Stream stream) {
  CollectiveCall call;
  call.send = call.recv = memory.at();
  call.count = 1000;
  call.type = DataType::Int32;
  call.stream = stream;
  return call;
}

// The driver's own release would wait for the kernel of rank 0, which waits for that of rank 1, which this thread has
// yet to launch.
TEST(GpuFree, DoesNotWaitForKernelsThatWaitForTheCaller) {
  GpuRanks ranks({0, 0});
  std::vector<int32_t> ones(1000, 1), results(1000);
  GpuMemory first(0, ones.data(), 4000), second(0, ones.data(), 4000);
  EXPECT_OK(ranks.run({sum_of(first, nullptr), sum_of(second, nullptr)}));
  Result<void*> memory = mem_alloc(100);
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  EXPECT_OK(ranks[0].submit(sum_of(first, ranks.stream(0).get())));
  EXPECT_OK(mem_free(*memory));
  EXPECT_FALSE(mem_free(*memory).ok());
  EXPECT_TRUE(retired().holds(*memory));
  EXPECT_OK(ranks[1].submit(sum_of(second, ranks.stream(1).get())));
  for (int rank = 0; rank < 2; ++rank) EXPECT_OK(ranks.stream(rank).wait());
  first.read(results.data());
  EXPECT_EQ(results, std::vector<int32_t>(1000, 4));
  EXPECT_OK(ranks.run({sum_of(first, nullptr), sum_of(second, nullptr)}));
}

// Rank 0 leaves, and rank 1 has its blocks mapped still: they go when it leaves too. Nobody waits for the other.
TEST(GpuFree, BlocksStayUntilThePeerHasLetGo) {
  in_processes(2, [](const UniqueId& id, int rank) {
    Result<Communicator*> made = Communicator::init(id, 2, rank, {});
    ASSERT_TRUE(made.ok()) << made.status().message();
    Result<Communicator*> other = (*made)->split(0, rank, nullptr);
    ASSERT_TRUE(other.ok()) << other.status().message();
    EXPECT_OK((*made)->barrier());
    EXPECT_OK((*other)->barrier());
    if (rank == 0) EXPECT_OK(Communicator::destroy(*made));
    EXPECT_OK((*other)->barrier());
    if (rank == 0) {
      retired().sweep();
      EXPECT_GT(retired().waiting(), 0u);
    }
    EXPECT_OK((*other)->barrier());
    if (rank == 1) EXPECT_OK(Communicator::destroy(*made));
    EXPECT_OK((*other)->barrier());
    EXPECT_TRUE(all_given_back());
    EXPECT_OK(Communicator::destroy(*other));
  });
}

TEST(GpuFree, BlocksOfAKilledPeerAreGivenBack) {
  in_processes(
      2,
      [](const UniqueId& id, int rank) {
        Result<Communicator*> made = Communicator::init(id, 2, rank, {});
        ASSERT_TRUE(made.ok()) << made.status().message();
        EXPECT_OK((*made)->barrier());
        if (rank == 1) (void)raise(SIGKILL);
        EXPECT_OK(Communicator::abort(*made));
        EXPECT_TRUE(all_given_back());
      },
      /*killed=*/1);
}

}  // namespace
}  // namespace theseus
