// Collectives on emulated GPUs, ranks in one process: against the reference.
#include <gtest/gtest.h>

#include "gpu_ranks.h"

namespace theseus {
namespace {

using testing::CollectiveCase;
using testing::driver;
using testing::GpuBuffers;
using testing::GpuMemory;
using testing::GpuRanks;

constexpr Collective kCollectivesWithPlans[] = {Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter,
                                                Collective::Broadcast, Collective::Reduce,    Collective::AllToAll,
                                                Collective::Gather,    Collective::Scatter};

template <class T>
void check(GpuRanks& ranks, const CollectiveCase& test) {
  std::vector<std::unique_ptr<GpuBuffers<T>>> buffers;
  std::vector<CollectiveCall> calls;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    buffers.push_back(std::make_unique<GpuBuffers<T>>(test, rank, ranks.device(rank)));
    calls.push_back(buffers.back()->call(test));
  }
  EXPECT_OK(ranks.run(calls));
  for (auto& buffer : buffers) EXPECT_EQ(buffer->difference(), "");
}

class GpuCollectives : public ::testing::TestWithParam<std::vector<int>> {};

// Every collective gives the reference's result, out of place and in place, in one message and in many, for several
// roots, again and again on the same communicator.
TEST_P(GpuCollectives, GiveTheReferencesResult) {
  GpuRanks ranks(GetParam());
  for (const Collective collective : kCollectivesWithPlans) {
    for (const size_t count : {1, 13, 70000}) {
      for (const bool in_place : {false, true}) {
        if (in_place && collective == Collective::AllToAll) continue;
        CollectiveCase test{collective, ranks.size(), count};
        test.in_place = in_place;
        test.root = (static_cast<int>(count) + in_place) % ranks.size();
        check<int32_t>(ranks, test);
      }
    }
  }
}

TEST_P(GpuCollectives, ReduceWithEveryOperation) {
  GpuRanks ranks(GetParam());
  for (const RedOp op : {RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min}) {
    check<double>(ranks, {Collective::AllReduce, ranks.size(), 37, op});
    check<uint8_t>(ranks, {Collective::ReduceScatter, ranks.size(), 37, op});
  }
}

// Averages of integers divide the sum; those of floating types, and PreMulSum, scale what each rank puts in.
TEST_P(GpuCollectives, AverageAndScale) {
  GpuRanks ranks(GetParam());
  const int n = ranks.size();
  const auto reduce = [&]<class T>(const std::vector<std::vector<T>>& inputs, const std::vector<int>& ops) {
    std::vector<std::unique_ptr<GpuMemory>> memory;
    std::vector<CollectiveCall> calls;
    for (int rank = 0; rank < n; ++rank) {
      const std::vector<T>& input = inputs[static_cast<size_t>(rank)];
      memory.push_back(std::make_unique<GpuMemory>(ranks.device(rank), input.data(), input.size() * sizeof(T)));
      CollectiveCall call;
      call.send = call.recv = memory.back()->at();
      call.count = input.size();
      call.type = testing::type_of<T>();
      call.op = ops[static_cast<size_t>(rank)];
      calls.push_back(call);
    }
    EXPECT_OK(ranks.run(calls));
    std::vector<std::vector<T>> outputs = inputs;
    for (int rank = 0; rank < n; ++rank)
      memory[static_cast<size_t>(rank)]->read(outputs[static_cast<size_t>(rank)].data());
    return outputs;
  };
  std::vector<std::vector<int32_t>> whole;
  std::vector<std::vector<float>> real;
  std::vector<int> factors;
  for (int rank = 0; rank < n; ++rank) {
    whole.emplace_back(33, -7 * (rank + 1));
    real.emplace_back(5000, 2);
    const float factor = static_cast<float>(rank + 1);
    Result<int> op = ranks[rank].create_premulsum(DataType::Float32, &factor);
    ASSERT_TRUE(op.ok()) << op.status().message();
    factors.push_back(*op);
  }
  const std::vector<int> averages(static_cast<size_t>(n), static_cast<int>(RedOp::Avg));
  for (const auto& output : reduce(whole, averages))
    EXPECT_EQ(output, std::vector<int32_t>(33, -7 * n * (n + 1) / 2 / n));
  for (const auto& output : reduce(real, factors))
    EXPECT_EQ(output, std::vector<float>(5000, static_cast<float>(n * (n + 1))));
  // A factor that kernels read where it lies, when they run.
  std::vector<std::unique_ptr<GpuMemory>> pointed;
  for (int rank = 0; rank < n; ++rank) {
    const float factor = static_cast<float>(10 * rank);
    pointed.push_back(std::make_unique<GpuMemory>(ranks.device(rank), &factor, sizeof factor));
    Result<int> op = ranks[rank].create_premulsum(DataType::Float32, pointed.back()->at(), /*pointed=*/true);
    ASSERT_TRUE(op.ok()) << op.status().message();
    factors[static_cast<size_t>(rank)] = *op;
  }
  for (const auto& output : reduce(real, factors)) {
    EXPECT_EQ(output, std::vector<float>(5000, static_cast<float>(10 * n * (n - 1))));
  }
  for (const auto& output : reduce(real, averages)) {
    EXPECT_EQ(output, std::vector<float>(5000, 2.0f / static_cast<float>(n) * static_cast<float>(n)));
  }
}

INSTANTIATE_TEST_SUITE_P(Placed, GpuCollectives,
                         ::testing::Values(std::vector<int>{0}, std::vector<int>{0, 0}, std::vector<int>{0, 1, 2},
                                           std::vector<int>{0, 0, 1, 1}));

}  // namespace
}  // namespace theseus
