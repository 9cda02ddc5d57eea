// The interpreting kernel, every rank and TB of it at once in this process, against the host executor: bit for bit.
#include <gtest/gtest.h>

#include "compiler/compile.h"
#include "device/interpret.cuh"
#include "device_world.h"
#include "request.h"

namespace theseus {

#define INTERPRETER(name, type, reduction, protocol)                                                                 \
  THESEUS_KERNEL(name, device::Request, request) {                                                                   \
    THESEUS_SHARED(device::Frame, frame);                                                                            \
    device::interpret<device::Numbers<device::Type::type, device::Reduction::reduction>, device::Protocol::protocol, \
                      true>(request, frame);                                                                         \
  }

INTERPRETER(interpret_uint8_sum, Uint8, Sum, Simple)
INTERPRETER(interpret_int32_max, Int32, Max, Simple)
INTERPRETER(interpret_float16_min, Float16, Min, Simple)
INTERPRETER(interpret_float32_sum, Float32, Sum, Simple)
INTERPRETER(interpret_float64_prod, Float64, Prod, Simple)
INTERPRETER(interpret_bfloat16_sum, Bfloat16, Sum, Simple)
INTERPRETER(interpret_float8e4m3_sum_ll, Float8e4m3, Sum, LL)
INTERPRETER(interpret_float32_sum_ll, Float32, Sum, LL)
INTERPRETER(interpret_int64_max_ll, Int64, Max, LL)

namespace {

using device::Fault;
using device::Protocol;
using testing::CollectiveCase;
using testing::DeviceCase;
using testing::DeviceGeometry;
using testing::DeviceWorld;
using testing::difference;
using testing::Factor;
using testing::FiberRun;
using testing::geometry_of;
using testing::kWithPlans;
using testing::plan_of;
using testing::ShmWorld;

struct Kernel {
  emu::Entry entry;
  DataType type;
  RedOp op;
  Protocol protocol;
};
constexpr Kernel kKernels[] = {
    {interpret_uint8_sum, DataType::Uint8, RedOp::Sum, Protocol::Simple},
    {interpret_int32_max, DataType::Int32, RedOp::Max, Protocol::Simple},
    {interpret_float16_min, DataType::Float16, RedOp::Min, Protocol::Simple},
    {interpret_float32_sum, DataType::Float32, RedOp::Sum, Protocol::Simple},
    {interpret_float64_prod, DataType::Float64, RedOp::Prod, Protocol::Simple},
    {interpret_bfloat16_sum, DataType::Bfloat16, RedOp::Sum, Protocol::Simple},
    {interpret_float8e4m3_sum_ll, DataType::Float8e4m3, RedOp::Sum, Protocol::LL},
    {interpret_float32_sum_ll, DataType::Float32, RedOp::Sum, Protocol::LL},
    {interpret_int64_max_ll, DataType::Int64, RedOp::Max, Protocol::LL},
};
constexpr Kernel kFloatSum = kKernels[3];
constexpr Kernel kFloatSumLL = kKernels[7];

DeviceCase case_of(const Kernel& kernel, const CollectiveCase& call, uint64_t seed) {
  DeviceCase test{call, kernel.type, Factor::None, kernel.protocol, seed};
  test.call.op = kernel.op;
  test.call.in_place = seed % 2 == 1 && call.collective != Collective::AllToAll;
  if (seed % 5 == 0 && is_reducing(call.collective)) test.factor = seed % 2 == 0 ? Factor::Any : Factor::Mean;
  if (test.divides()) test.factor = Factor::Any;
  return test;
}

class DeviceInterpreter : public ::testing::TestWithParam<int> {};

// Whatever the algorithm, type, operation, protocol, number of slots, threads and place of buffers.
TEST_P(DeviceInterpreter, GivesTheHostsBits) {
  SKIP_WITHOUT_FIBERS();
  const int ranks = GetParam();
  ShmWorld host(geometry_of(ranks, kMaxSlots, 4096));
  uint64_t seed = static_cast<uint64_t>(ranks);
  for (const size_t count : {1, 7, 300}) {
    testing::for_each_plan(ranks, count, [&](const CollectiveCase& call, const Plan& plan) {
      // One world for all, as counters go on from launch to launch, whatever the type and protocol.
      DeviceWorld world(plan, {.slots = 2 + static_cast<uint32_t>(seed % 3)});
      for (const Kernel& kernel : kKernels) {
        EXPECT_EQ(difference(case_of(kernel, call, ++seed), plan, kernel.entry, world, host), "");
      }
    });
  }
}

// The compiler's plans: many sub-pipelines, shared TBs, fused instructions, both orders of loops.
TEST_P(DeviceInterpreter, GivesTheHostsBitsForCompiledPlans) {
  SKIP_WITHOUT_FIBERS();
  const int ranks = GetParam();
  ShmWorld host(geometry_of(ranks, kMaxSlots, 4096));
  uint64_t seed = static_cast<uint64_t>(ranks) * 7;
  const Topology topology = single_host(ranks);
  for (const BuiltIn& algorithm : built_ins()) {
    for (const Collective collective : kWithPlans) {
      if (!algorithm.makes(collective)) continue;
      Result<Algorithm> built = build(algorithm.name, collective, topology, 0);
      ASSERT_TRUE(built.ok()) << built.status().message();
      CompileOptions options;
      options.loop = seed / 9 % 2 == 0 ? LoopOrder::SubPipelines : LoopOrder::MicroBatches;
      options.fuse = seed / 9 % 3 == 0;
      options.fold = seed / 9 % 4 != 0;
      const Result<Plan> plan = compile(*built, topology, options);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      DeviceWorld world(*plan, {});
      for (const Kernel& kernel : kKernels) {
        const CollectiveCase call{collective, ranks, 50 + seed * 31 % 400};
        EXPECT_EQ(difference(case_of(kernel, call, seed++), *plan, kernel.entry, world, host), "") << algorithm.name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceInterpreter, ::testing::Values(1, 2, 3, 4, 5, 8));

Plan ring_of(int ranks) { return plan_of(*find_built_in("ring"), {Collective::AllReduce, ranks, 1}); }

// Message numbers pass 2^16, where posted words come round, and 2^32, where LL flags do.
TEST(DeviceCounters, ComeRound) {
  SKIP_WITHOUT_FIBERS();
  const Plan plan = ring_of(3);
  ShmWorld host(geometry_of(3, kMaxSlots, 4096));
  for (const Kernel& kernel : {kFloatSum, kFloatSumLL}) {
    for (const device::U64 turn : {device::U64{1} << 16, device::U64{1} << 32}) {
      DeviceWorld world(plan, {.messages = turn - 20});
      for (uint64_t seed = 1; seed < 6; ++seed) {
        const CollectiveCase call{Collective::AllReduce, 3, 200};
        EXPECT_EQ(difference(case_of(kernel, call, seed), plan, kernel.entry, world, host), "") << turn;
      }
    }
  }
}

// LL slots are written whole from time to time, so that a flag of 2^32 messages ago is never taken for a new one.
TEST(DeviceCounters, NoFlagSurvivesToComeRound) {
  const Plan plan = ring_of(3);
  ShmWorld host(geometry_of(3, kMaxSlots, 4096));
  for (uint64_t start = 0; start < 12; ++start) {  // other orders of threads
    DeviceWorld world(plan, {.messages = device::kLineSweep - 5, .leftovers = true});
    uint64_t seed = start;
    // Messages 1 to 16 have one line of data, those that the leftovers look like have many.
    for (const size_t count : {3, 3, 3, 3, 90, 90}) {
      const CollectiveCase call{Collective::AllReduce, 3, count};
      EXPECT_EQ(difference(case_of(kFloatSumLL, call, ++seed), plan, kFloatSumLL.entry, world, host), "") << seed;
    }
  }
}

// Slots that LL messages used for long bear posted words that would come round; they are renewed from time to time.
TEST(DeviceCounters, NoPostedWordSurvivesToComeRound) {
  SKIP_WITHOUT_FIBERS();
  const Plan plan = ring_of(3);
  ShmWorld host(geometry_of(3, kMaxSlots, 4096));
  for (uint64_t seed = 1; seed < 6; ++seed) {
    DeviceWorld world(plan, {.messages = 4 * device::kPostedSweep - 5, .old_words = true});
    for (const Kernel& kernel :
         {kFloatSumLL, kFloatSumLL, kFloatSumLL, kFloatSumLL, kFloatSum, kFloatSumLL, kFloatSum}) {
      const CollectiveCase call{Collective::AllReduce, 3, kernel.protocol == Protocol::LL ? size_t{3} : size_t{200}};
      EXPECT_EQ(difference(case_of(kernel, call, seed), plan, kernel.entry, world, host), "") << seed;
    }
  }
}

// A kernel leaves when the host says so, though its peers never come.
TEST(DeviceAbort, EndsALaunchWithoutPeers) {
  SKIP_WITHOUT_FIBERS();
  const Plan plan = ring_of(2);
  for (const Kernel& kernel : {kFloatSum, kFloatSumLL}) {
    DeviceWorld world(plan, {});
    world.requests(case_of(kernel, {Collective::AllReduce, 2, 100}, 2));
    auto launches = world.launches(kernel.entry, 2);
    launches.resize(1);
    FiberRun run(1);
    int rounds = 0;
    run.on_round = [&] {
      if (++rounds == 300) world.abort();
    };
    EXPECT_EQ(run.run(launches, 5000), "");
    EXPECT_GE(rounds, 300);
    EXPECT_EQ(world.fault(0), 0u);
  }
}

// What a rank of another call, of another length, or of another kernel does is a fault, and no harm.
TEST(DeviceFaults, NameWhatIsWrong) {
  SKIP_WITHOUT_FIBERS();
  const Plan plan = ring_of(2);
  for (const Kernel& kernel : {kFloatSum, kFloatSumLL}) {
    const auto fault_after = [&](const auto& change) {
      DeviceWorld world(plan, {});
      change(world.requests(case_of(kernel, {Collective::AllReduce, 2, 60}, 2))[0]);
      FiberRun run(1);
      run.on_round = [&] {
        if (world.fault(0) != 0 || world.fault(1) != 0) world.abort();
      };
      EXPECT_EQ(run.run(world.launches(kernel.entry, 2), 5000), "");
      return device::fault_of(world.fault(0) != 0 ? world.fault(0) : world.fault(1));
    };
    EXPECT_EQ(fault_after([](device::Request& request) { request.tag = 6; }), Fault::OtherCall);
    EXPECT_EQ(fault_after([](device::Request& request) { request.chunk -= 3; }), Fault::WrongLength);
    EXPECT_EQ(fault_after([](device::Request& request) { request.type = device::Type::Int32; }), Fault::WrongKernel);
    EXPECT_EQ(fault_after([](device::Request&) {}), Fault::None);
  }
}

// The same with an OS thread for each CUDA thread, where a sanitizer looks for races.
TEST(DeviceThreads, GiveTheHostsBits) {
  ShmWorld host(geometry_of(3, kMaxSlots, 4096));
  uint64_t seed = 1;
  testing::for_each_plan(3, 90, [&](const CollectiveCase& call, const Plan& plan) {
    DeviceWorld world(plan, {});
    for (const Kernel& kernel : {kFloatSum, kFloatSumLL}) {
      const DeviceCase test = case_of(kernel, call, seed++);
      world.requests(test);
      testing::run_in_threads(world.launches(kernel.entry, 2));
      EXPECT_EQ(world.memory(), testing::run_on_host(test, plan, host, world.piece_bytes(test)));
    }
  });
}

}  // namespace
}  // namespace theseus
