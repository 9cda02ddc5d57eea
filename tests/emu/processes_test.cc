// Communicators on emulated GPUs whose ranks are processes: device memory that is passed between them.
#include <gtest/gtest.h>
#include <signal.h>

#include "gpu_ranks.h"
#include "unit/runtime/rank_processes.h"

namespace theseus {
namespace {

using testing::CollectiveCase;
using testing::driver;
using testing::GpuBuffers;
using testing::GpuStream;
using testing::in_processes;

void check_all(const UniqueId& id, int ranks, int rank, int device) {
  EXPECT_OK(driver().set_current_device(device));
  Result<Communicator*> made = Communicator::init(id, ranks, rank, {});
  ASSERT_TRUE(made.ok()) << made.status().message();
  {
    GpuStream stream(device);
    for (const Collective collective : {Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter,
                                        Collective::Broadcast, Collective::Reduce, Collective::AllToAll}) {
      for (const size_t count : {1, 5000, 100'000}) {
        const CollectiveCase test{collective, ranks, count, RedOp::Sum, 1};
        GpuBuffers<int32_t> buffers(test, rank, device);
        CollectiveCall call = buffers.call(test);
        call.stream = stream.get();
        EXPECT_OK((*made)->submit(call));
        EXPECT_OK(stream.wait());
        EXPECT_EQ(buffers.difference(), "");
      }
    }
    EXPECT_OK((*made)->barrier());
  }
  EXPECT_OK(Communicator::destroy(*made));
}

TEST(GpuProcesses, ShareOneGpu) {
  in_processes(2, [](const UniqueId& id, int rank) { check_all(id, 2, rank, 0); });
}

TEST(GpuProcesses, HaveOneEach) {
  in_processes(3, [](const UniqueId& id, int rank) { check_all(id, 3, rank, rank); });
}

// The kernel of a rank whose peer was killed leaves, and the communicator says who is gone.
TEST(GpuProcesses, ADeadPeerEndsTheKernelThatWaits) {
  in_processes(
      2,
      [](const UniqueId& id, int rank) {
        Result<Communicator*> made = Communicator::init(id, 2, rank, {});
        ASSERT_TRUE(made.ok()) << made.status().message();
        EXPECT_OK((*made)->barrier());
        if (rank == 1) (void)raise(SIGKILL);
        GpuStream stream(0);
        const CollectiveCase test{Collective::AllReduce, 2, 1000};
        GpuBuffers<int32_t> buffers(test, rank, 0);
        CollectiveCall call = buffers.call(test);
        call.stream = stream.get();
        (void)(*made)->submit(call).ok();  // refused where the news came first
        EXPECT_OK(stream.wait());
        EXPECT_EQ((*made)->async_error().code(), Code::RemoteError) << (*made)->async_error().message();
        EXPECT_OK(Communicator::abort(*made));
      },
      /*killed=*/1);
}

}  // namespace
}  // namespace theseus
