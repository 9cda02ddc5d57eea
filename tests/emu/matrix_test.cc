// Every built-in algorithm, type and operation on 1 to 8 ranks, through communicators: what the executor makes of a
// request, and kernels of a request, gives the bits of the host executor with the same plan. Of the product, so many
// cells that each algorithm meets each type and each operation, each type each operation, and each number of ranks all
// of them; the whole of it runs in tests/unit/executor/device_matrix_test.cc, by the same kernels.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "gpu_plans.h"
#include "gpu_ranks.h"
#include "schedule/places.h"
#include "unit/executor/request.h"

namespace theseus {
namespace {

using testing::DeviceCase;
using testing::Factor;
using testing::GpuPlan;
using testing::GpuRanks;
using testing::kWithPlans;

// Pairs of values that some request had together: "ring of AllReduce" with "bfloat16".
class Pairs {
 public:
  void add(const std::vector<std::string>& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      for (size_t j = 0; j < i; ++j) seen_.insert({values[j], values[i]});
    }
  }
  // How many of the pairs that `values` makes have not been seen.
  int fresh(const std::vector<std::string>& values) const {
    int fresh = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      for (size_t j = 0; j < i; ++j) fresh += seen_.contains({values[j], values[i]}) ? 0 : 1;
    }
    return fresh;
  }
  bool contains(const std::string& first, const std::string& second) const { return seen_.contains({first, second}); }

 private:
  std::set<std::pair<std::string, std::string>> seen_;
};

std::string operation_of(const DeviceCase& test) {
  if (test.factor == Factor::Mean) return "avg";
  return test.factor == Factor::Any ? "premulsum" : name_of(test.call.op);
}

std::vector<std::string> values_of(const DeviceCase& test, const std::string& algorithm) {
  std::vector<std::string> values = {algorithm + " of " + name_of(test.call.collective),
                                     std::to_string(test.call.ranks) + " ranks", name_of(test.type)};
  if (is_reducing(test.call.collective)) values.push_back(operation_of(test));
  return values;
}

DeviceCase draw(const Plan& plan, std::mt19937_64& random) {
  DeviceCase test{{plan.collective, plan.ranks, 1}, static_cast<DataType>(random() % kDataTypes)};
  test.seed = random();
  test.call.root = plan.root;
  test.call.in_place = random() % 2 == 0 && plan.collective != Collective::AllToAll;
  if (is_reducing(plan.collective)) {
    const uint64_t operation = random() % kRedOps;
    test.call.op = operation < 4 ? static_cast<RedOp>(operation) : RedOp::Sum;
    if (operation >= 4) test.factor = operation == 4 ? Factor::Mean : Factor::Any;
  }
  // A type's sums of an operation are short messages or long ones, so that half as many kernels have to be compiled.
  const bool is_short = (static_cast<int>(test.type) + static_cast<int>(test.call.op)) % 2 == 0;
  const auto pieces = static_cast<size_t>(plan.chunks_per_block);
  test.call.count = 1 + random() % (2 * pieces + 3);
  if (!is_short) test.call.count += pieces * (testing::kLongestShortMessage / size_of(test.type));
  return test;
}

// Of a few draws, the one that is most unlike what there was.
DeviceCase draw_fresh(const Plan& plan, const std::string& algorithm, const Pairs& pairs, std::mt19937_64& random) {
  DeviceCase best = draw(plan, random);
  for (int i = 0; i < 60; ++i) {
    const DeviceCase other = draw(plan, random);
    if (pairs.fresh(values_of(other, algorithm)) > pairs.fresh(values_of(best, algorithm))) best = other;
  }
  return best;
}

template <class Body>
void for_each_built_in(const Body& body) {
  for (const BuiltIn& algorithm : built_ins()) {
    for (const Collective collective : kWithPlans) {
      if (algorithm.makes(collective)) body(algorithm.name, collective);
    }
  }
}

TEST(GpuMatrix, EveryAlgorithmTypeAndOperationHasTheHostsBits) {
  std::mt19937_64 random(20);
  Pairs pairs;
  for (int size = 1; size <= 8; ++size) {
    GpuRanks ranks(testing::spread_over_devices(size));
    for_each_built_in([&](const std::string& algorithm, Collective collective) {
      const int root = size - 1;
      Result<Algorithm> built = build(algorithm, collective, single_host(size), root);
      ASSERT_TRUE(built.ok()) << built.status().message();
      const Result<Plan> plan = lower(*built, single_host(size));
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      GpuPlan loaded(ranks, *plan);
      for (int i = 0; i < (is_reducing(collective) ? 4 : 2); ++i) {
        const DeviceCase test = draw_fresh(*plan, algorithm, pairs, random);
        pairs.add(values_of(test, algorithm));
        EXPECT_EQ(loaded.difference(test), "") << algorithm;
      }
    });
  }
  for (int type = 0; type < kDataTypes; ++type) {
    const std::string name = name_of(static_cast<DataType>(type));
    for_each_built_in([&](const std::string& algorithm, Collective collective) {
      EXPECT_TRUE(pairs.contains(algorithm + " of " + name_of(collective), name)) << algorithm << ", " << name;
    });
    for (const char* operation : {"sum", "prod", "max", "min", "avg", "premulsum"}) {
      EXPECT_TRUE(pairs.contains(name, operation)) << name << ", " << operation;
    }
    for (int size = 1; size <= 8; ++size) {
      EXPECT_TRUE(pairs.contains(std::to_string(size) + " ranks", name)) << size << ", " << name;
    }
  }
}

}  // namespace
}  // namespace theseus
