#include "context/agreement_cost.h"

#include <gtest/gtest.h>

#include <bit>

namespace theseus {
namespace {

AgreementRun run(const AgreementShape& shape, const AgreementCosts& costs) {
  const Result<AgreementRun> result = run_agreement(shape, costs);
  EXPECT_TRUE(result.ok());
  return result.ok() ? *result : AgreementRun{};
}

// Two ranks, by hand: offers up and the candidate down; votes and the verdict where something changes.
TEST(AgreementCost, CountsTwoRanks) {
  AgreementShape shape;
  shape.ranks = 2;
  const AgreementCosts costs{.local_message = 1, .remote_message = 10, .receiving = 0, .sending = 0};
  EXPECT_EQ(run(shape, costs).latency, 20);
  EXPECT_EQ(run(shape, costs).remote_messages, 3u);  // rank 0 says that it has begun
  shape.ranks_per_host = 2;
  EXPECT_EQ(run(shape, costs).latency, 2);
  EXPECT_EQ(run(shape, costs).remote_messages, 0u);
  shape.changes = true;
  EXPECT_EQ(run(shape, costs).latency, 4);
  EXPECT_EQ(run(shape, costs).messages, 5u);
}

TEST(AgreementCost, CountsWorkOfRanks) {
  AgreementShape shape;
  shape.ranks = 2;
  // Rank 0 sends that it has begun, takes offers, sends the candidate, which rank 1 takes.
  const AgreementCosts costs{.local_message = 0, .remote_message = 0, .receiving = 3, .sending = 5};
  EXPECT_EQ(run(shape, costs).latency, 5 + 3 + 5 + 3);
}

// Messages a rank, and time, grow with the logarithm of the ranks, whoever gets there first.
TEST(AgreementCost, GrowsWithTheLogarithm) {
  const AgreementCosts costs{.local_message = 2e-6, .remote_message = 30e-6, .receiving = 2e-6, .sending = 2e-6};
  for (const int hosts : {1, 2, 3, 16, 100, 512}) {
    for (const bool changes : {false, true}) {
      for (const bool one_arrives : {false, true}) {
        AgreementShape shape;
        shape.ranks = hosts * 8;
        shape.ranks_per_host = 8;
        shape.changes = changes;
        shape.one_arrives = one_arrives;
        shape.spread = 1e-4;
        const AgreementRun one = run(shape, costs);
        const int depth = 3 + std::bit_width(static_cast<unsigned>(hosts - 1));
        EXPECT_LE(one.most_messages, static_cast<uint64_t>((changes ? 6 : 4) * (depth + 1)));
        EXPECT_LE(one.remote_messages, static_cast<uint64_t>((changes ? 6 : 4) * (hosts - 1)));
        EXPECT_LE(one.mean_messages, 12);
        EXPECT_LE(one.latency, shape.spread + 6 * depth * 60e-6);
        EXPECT_GT(one.latency, 0);
      }
    }
  }
}

TEST(AgreementCost, RefusesWhatCannotBe) {
  EXPECT_FALSE(run_agreement({.ranks = 0}, {}).ok());
  EXPECT_FALSE(run_agreement({.ranks = 8, .ranks_per_host = 0}, {}).ok());
  EXPECT_FALSE(run_agreement({.ranks = 8}, {.receiving = -1}).ok());
  EXPECT_FALSE(run_agreement({.ranks = 8, .spread = 1e9}, {}).ok());
}

}  // namespace
}  // namespace theseus
