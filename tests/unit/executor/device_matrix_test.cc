// The full product, by the interpreting kernel: every collective, built-in algorithm, type and operation on 1 to 8
// ranks has the host executor's bits. Through the executor's data structures, since thousands of requests on emulated
// streams would take an hour; that communicators hand the same to the same kernels is for tests/emu/matrix_test.cc.
#include <gtest/gtest.h>

#include "device_kernels.h"
#include "device_world.h"
#include "request.h"
#include "schedule/places.h"

namespace theseus {
namespace {

using device::Protocol;
using testing::DeviceCase;
using testing::DeviceGeometry;
using testing::DeviceWorld;
using testing::difference;
using testing::Factor;
using testing::geometry_of;
using testing::kWithPlans;
using testing::ShmWorld;

// Short messages, so that few elements already fill several.
constexpr DeviceGeometry kGeometry = {.slots = 2, .slot_bytes = 32, .lines = 5};
constexpr size_t kMessage = 32;

struct Operation {
  RedOp op;
  Factor factor;
};
constexpr Operation kOperations[] = {{RedOp::Sum, Factor::None}, {RedOp::Prod, Factor::None},
                                     {RedOp::Max, Factor::None}, {RedOp::Min, Factor::None},
                                     {RedOp::Sum, Factor::Mean}, {RedOp::Sum, Factor::Any}};

constexpr uint64_t kCounts = 4;
// Elements of one block: one, whatever the pieces; one for each piece; pieces that are not equal, and three messages
// long; pieces of one full message.
size_t count_of(uint64_t which, size_t pieces, DataType type) {
  const size_t message = kMessage / size_of(type);
  switch (which % kCounts) {
    case 0: return 1;
    case 1: return pieces;
    case 2: return pieces * 2 * message + std::max<size_t>(pieces / 2, 1);
    default: return pieces * message;
  }
}

// Runs one plan with all types, operations and protocols: a cell each. Returns how many cells those are.
uint64_t run_cells(const Plan& plan, int root, uint64_t counts, ShmWorld& host, std::mt19937_64& random) {
  DeviceWorld world(plan, kGeometry);
  const auto run = [&](DataType type, const Operation& operation, Protocol protocol, uint64_t which) {
    DeviceCase test{{}, type, operation.factor, protocol, random()};
    test.call = {plan.collective, plan.ranks, count_of(which, static_cast<size_t>(plan.chunks_per_block), type)};
    test.call.op = operation.op;
    test.call.root = root;
    test.call.in_place = (test.seed >> 16) % 2 == 1 && plan.collective != Collective::AllToAll;
    const emu::Entry kernel = testing::interpreter_of(type, operation.op, protocol);
    EXPECT_EQ(difference(test, plan, kernel, world, host, testing::division_of(type)), "") << plan.name;
  };
  uint64_t cells = 0;
  const size_t operations = is_reducing(plan.collective) ? std::size(kOperations) : 1;
  for (int type = 0; type < kDataTypes; ++type) {
    for (size_t operation = 0; operation < operations; ++operation) {
      for (const Protocol protocol : {Protocol::Simple, Protocol::LL}) {
        const uint64_t first = random();
        for (uint64_t i = 0; i < counts; ++i) {
          run(static_cast<DataType>(type), kOperations[operation], protocol, first + i);
        }
        ++cells;
      }
    }
  }
  return cells;
}

// Of all built-in algorithms and the collectives that they make.
uint64_t cells_of_all() {
  uint64_t cells = 0;
  for (const BuiltIn& algorithm : built_ins()) {
    for (const Collective collective : kWithPlans) {
      if (algorithm.makes(collective)) cells += kDataTypes * (is_reducing(collective) ? kRedOps : 1) * 2;
    }
  }
  return cells;
}

class DeviceMatrix : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "ThreadSanitizer does not follow fibers; DeviceThreads is for it";
#endif
  }

  // All plans of a topology.
  template <class Body>
  void for_each_plan(const Topology& topology, const Body& body) {
    const int root = GetParam() - 1;
    for (const BuiltIn& algorithm : built_ins()) {
      for (const Collective collective : kWithPlans) {
        if (!algorithm.makes(collective)) continue;
        Result<Algorithm> built = build(algorithm.name, collective, topology, root);
        ASSERT_TRUE(built.ok()) << built.status().message();
        const Result<Plan> plan = lower(*built, topology);
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        body(*plan);
      }
    }
  }
};

// One host: every cell with every count. The place of the buffers, threads and where PreMulSum's factor lies are drawn.
TEST_P(DeviceMatrix, IsTheHosts) {
  SKIP_WITHOUT_FIBERS();
  const int ranks = GetParam();
  ShmWorld host(geometry_of(ranks, kMaxSlots, 4096));
  std::mt19937_64 random(static_cast<uint64_t>(ranks));
  uint64_t cells = 0;
  for_each_plan(single_host(ranks),
                [&](const Plan& plan) { cells += run_cells(plan, ranks - 1, kCounts, host, random); });
  EXPECT_EQ(cells, cells_of_all());
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceMatrix, ::testing::Range(1, 9));

// The same algorithms make other plans of several hosts: every cell with one count, drawn.
class DeviceMatrixOfHosts : public DeviceMatrix {};

TEST_P(DeviceMatrixOfHosts, IsTheHosts) {
  SKIP_WITHOUT_FIBERS();
  const int ranks = GetParam();
  ShmWorld host(geometry_of(ranks, kMaxSlots, 4096));
  std::mt19937_64 random(static_cast<uint64_t>(ranks));
  uint64_t cells = 0;
  for_each_plan(uniform_hosts(2, ranks / 2, 1),
                [&](const Plan& plan) { cells += run_cells(plan, ranks - 1, 1, host, random); });
  EXPECT_EQ(cells, cells_of_all());
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceMatrixOfHosts, ::testing::Values(2, 4, 6, 8));

}  // namespace
}  // namespace theseus
