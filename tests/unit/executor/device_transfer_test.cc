// The kernel of transfers, every CUDA thread a fiber, so that a wait that never ends is found for certain.
#include <gtest/gtest.h>

#include <string>

#include "device/transfer.cuh"
#include "device_run.h"
#include "transfer_world.h"

namespace theseus {
namespace {

using namespace theseus::device;
using testing::FiberRun;
using testing::TransferGeometry;
using testing::TransferWorld;

THESEUS_KERNEL(transfers, TransferRequest, request) {
  THESEUS_SHARED(TransferJob, job);
  transfer(request, job);
}

// Where a message changes its way: no data, short ones in lines, one slot's worth, several.
constexpr size_t kSizes[] = {0, 1, 7, 112, 113, 240, 241, 1000, 5000};

// All pairs, several transfers each, some over several links, by any number of TBs and threads.
TEST(DeviceTransfer, AllPairsWhateverTheGrid) {
  SKIP_WITHOUT_FIBERS();
  for (const uint32_t blocks : {1, 2, 3, 7, 24}) {
    for (const uint32_t threads : {1, 3}) {
      TransferWorld world(3, {});
      for (int from = 0; from < 3; ++from) {
        for (int to = 0; to < 3; ++to) {
          uint32_t turn = static_cast<uint32_t>(from * 3 + to);
          for (const size_t bytes : kSizes) {
            if (from != to) world.add(from, to, bytes, 1 + turn++ % 3, turn % 5);
          }
        }
      }
      ASSERT_EQ(FiberRun(blocks).run(world.launches(transfers, blocks, threads)), "");
      ASSERT_TRUE(world.all_arrived()) << blocks << " TBs of " << threads;
    }
  }
}

// One TB serves what would wait for itself if it took it one after the other: both send more than the slots hold
// before they receive.
TEST(DeviceTransfer, OneThreadBlockDoesNotWaitForItself) {
  SKIP_WITHOUT_FIBERS();
  for (uint64_t seed = 0; seed < 20; ++seed) {
    TransferWorld world(2, {});
    world.add(0, 1, 4000, 1);
    world.add(1, 0, 4000, 1);
    ASSERT_EQ(FiberRun(seed).run(world.launches(transfers, 1, 2)), "");
    ASSERT_TRUE(world.all_arrived());
  }
}

// Numbers of messages come round, in posted words sooner than in lines; words that the other protocol left behind long
// ago are not taken for those that are due.
TEST(DeviceTransfer, OldWordsAreNotTakenForNewOnes) {
  SKIP_WITHOUT_FIBERS();
  const uint64_t starts[] = {0, (1 << 14) - 20, (1 << 15) - 20, (1 << 16) - 20, (1ull << 30) - 20, (1ull << 32) - 20};
  for (const uint64_t start : starts) {
    for (const size_t bytes : {size_t{8}, size_t{200}}) {
      TransferWorld world(2, {.messages = start / 3 * 3, .old_words = start != 0, .old_lines = start > 1 << 29});
      for (int launch = 0; launch < 4; ++launch) {
        // All in lines or all in slots, until the old ones are due.
        for (int turn = 0; turn < 20; ++turn) world.add(0, 1, launch == 3 && turn % 3 == 0 ? 208 - bytes : bytes, 1);
        ASSERT_EQ(FiberRun(7).run(world.launches(transfers, 1, 2)), "") << start << ", " << bytes;
        ASSERT_EQ(world.fault(1), 0u) << start << ", " << bytes;
        ASSERT_TRUE(world.all_arrived()) << start << ", " << bytes;
      }
    }
  }
}

// The receiver says what it expected, and what came.
TEST(DeviceTransfer, AMismatchIsTold) {
  SKIP_WITHOUT_FIBERS();
  for (const auto& [sent, expected] : {std::pair{8, 9}, {8, 5000}, {5000, 8}, {0, 1}}) {
    TransferWorld world(2, {});
    world.add(0, 1, static_cast<size_t>(sent), static_cast<size_t>(expected), 1, 0);
    FiberRun run(3);
    run.on_round = [&] {
      if (world.fault(1) != 0) world.abort();
    };
    ASSERT_EQ(run.run(world.launches(transfers, 2, 2)), "");
    ASSERT_EQ(fault_of(world.fault(1)), Fault::OtherTransfer);
    const TransferMismatch& found = world.found(1, fault_block(world.fault(1)));
    EXPECT_EQ(found.own.count, static_cast<U64>(expected));
    EXPECT_EQ(found.other.count, static_cast<U64>(sent));
    EXPECT_EQ(found.own.rank, 1);
    EXPECT_EQ(found.other.rank, 0);
    EXPECT_EQ(world.fault(0), 0u);
  }
}

// Who waits for nobody leaves when told to.
TEST(DeviceTransfer, AnAbortEndsIt) {
  SKIP_WITHOUT_FIBERS();
  TransferWorld world(2, {});
  world.add(0, 1, 5000, 1);
  std::vector<testing::KernelLaunch> launches = world.launches(transfers, 1, 2);
  launches.pop_back();
  FiberRun run(1);
  int rounds = 0;
  run.on_round = [&] {
    if (++rounds == 500) world.abort();
  };
  EXPECT_EQ(run.run(launches), "");
  EXPECT_GE(rounds, 500);
}

}  // namespace
}  // namespace theseus
