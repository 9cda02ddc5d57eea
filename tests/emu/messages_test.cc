// What a user reads where a GPU does not do what it should: one sentence that says what is wrong and the way out, from
// the call that needs it, and a process that can go on.
#include <gtest/gtest.h>

#include "drivers/cuda/emu.h"
#include "gpu_ranks.h"

namespace theseus {
namespace {

using testing::driver;
using testing::GpuMemory;
using testing::GpuRanks;

cuda::EmulatorFaults& faults() { return static_cast<cuda::Emulator&>(driver()).faults(); }

void expect_sentence(const Status& refused, Code code, const std::vector<std::string>& words) {
  EXPECT_EQ(refused.code(), code) << refused.message();
  for (const std::string& word : words) {
    EXPECT_NE(refused.message().find(word), std::string::npos) << "'" << word << "' is not in: " << refused.message();
  }
  EXPECT_EQ(refused.message().find('\n'), std::string::npos) << refused.message();
}

// Of all ranks, in one group.
Status reduce(GpuRanks& ranks, DataType type = DataType::Int32) {
  std::vector<int64_t> ones(100, 1);
  std::vector<std::unique_ptr<GpuMemory>> memory;
  std::vector<CollectiveCall> calls;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    memory.push_back(std::make_unique<GpuMemory>(ranks.device(rank), ones.data(), 800));
    CollectiveCall call;
    call.send = call.recv = memory.back()->at();
    call.count = 100;
    call.type = type;
    calls.push_back(call);
  }
  return ranks.run(calls);
}

TEST(GpuMessages, OutOfMemoryAtTheStart) {
  faults().fail_allocations(0, 1);
  expect_sentence(Communicator::init_all(1, {0}).status(), Code::UnhandledCudaError, {"pinned memory", "ulimit -l"});
  faults().fail_allocations(1, 1);
  expect_sentence(Communicator::init_all(1, {0}).status(), Code::UnhandledCudaError,
                  {"out of memory", "device 0", "THESEUS_EMU_MEMORY"});
  GpuRanks ranks({0, 0});
  EXPECT_OK(reduce(ranks));
}

TEST(GpuMessages, OutOfMemoryForConnections) {
  faults().fail_allocations(0, 100);
  const Status refused = Communicator::init_all(2, {0, 1}).status();
  faults().fail_allocations(0, 0);
  expect_sentence(refused, Code::UnhandledCudaError, {"connections (1)", "out of memory", "THESEUS_EMU_MEMORY"});
}

// Devices 2 and 3 belong to this test: a refusal stays.
TEST(GpuMessages, PeerAccessRefused) {
  faults().refuse_peers(2, 3);
  GpuRanks ranks({2, 3});
  expect_sentence(reduce(ranks), Code::UnhandledCudaError, {"peer access refused", "device 2", "device 3", "choose"});
}

TEST(GpuMessages, NoCompiler) {
  GpuRanks ranks({0, 0});
  faults().fail_compilers(0, 100);
  // A type that no other test of this program has, since kernels stay once they are made.
  const Status refused = reduce(ranks, DataType::Float8e5m2);
  faults().fail_compilers(0, 0);
  expect_sentence(refused, Code::UnhandledCudaError, {"kernels need a compiler", "THESEUS_EMU_COMPILER"});
}

TEST(GpuMessages, ALaunchThatFails) {
  GpuRanks ranks({0, 0});
  EXPECT_OK(reduce(ranks));
  faults().fail_launches(0, 1);
  expect_sentence(reduce(ranks), Code::UnhandledCudaError, {"launch of kernel"});
}

}  // namespace
}  // namespace theseus
