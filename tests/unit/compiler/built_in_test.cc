// Every built-in algorithm computes its collective: proven by the verifier and tried on integers.
#include <gtest/gtest.h>

#include <numeric>

#include "compiler/lower.h"
#include "compiler/registry.h"
#include "compiler/verify.h"
#include "schedule/check.h"
#include "unit/compiler/simulator.h"

namespace theseus {
namespace {

using testing::RunOptions;
using testing::simulate;

std::vector<int> roots_of(Collective collective, int ranks) {
  if (!is_rooted(collective)) return {0};
  std::vector<int> roots{0};
  if (ranks > 1) roots.push_back(ranks - 1);
  if (ranks > 3) roots.push_back(ranks / 2);
  return roots;
}

// `plan` is proven with 2 slots and with many, and gives the right data with random interleavings.
void expect_right(const Plan& plan, uint64_t seed, bool simulated) {
  for (const int slots : {2, 8}) {
    VerifyOptions options;
    options.slots = slots;
    const Status status = verify(plan, options);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  if (!simulated) return;
  for (const bool in_place : {false, true}) {
    if (in_place && plan.collective == Collective::AllToAll) continue;
    for (const int64_t count : {0, 1, 2 * plan.chunks_per_block + 3}) {
      RunOptions run{count, 1, 2, in_place, false, seed++};
      ASSERT_EQ(simulate(plan, run), "") << plan.name << " count " << count << " in place " << in_place;
      run.slot = 100;
      ASSERT_EQ(simulate(plan, run), "");
      if (!plan.rendezvous_safe) continue;
      run.by_reference = true;
      run.slot = 1;
      ASSERT_EQ(simulate(plan, run), "") << plan.name << " by reference";
    }
  }
}

void expect_all_right(const Topology& topology, bool simulated = true) {
  const int ranks = static_cast<int>(topology.host_of_rank.size());
  const bool even = summary_of(topology).ranks_per_host > 0;
  for (const BuiltIn& entry : built_ins()) {
    for (int c = 0; c < kCollectives; ++c) {
      const auto collective = static_cast<Collective>(c);
      if (!entry.makes(collective) || (entry.needs_even_hosts && !even)) continue;
      for (const int root : roots_of(collective, ranks)) {
        SCOPED_TRACE(std::string(entry.name) + " " + name_of(collective) + ", " + std::to_string(ranks) +
                     " ranks, root " + std::to_string(root) + ", rails " + std::to_string(topology.rails));
        auto algorithm = build(entry.name, collective, topology, root);
        ASSERT_TRUE(algorithm.ok()) << algorithm.status().message();
        auto plan = lower(*algorithm, topology);
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        expect_right(*plan, static_cast<uint64_t>(ranks * 1000 + root), simulated);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

class OnOneHost : public ::testing::TestWithParam<int> {};
TEST_P(OnOneHost, EveryAlgorithmComputesItsCollective) { expect_all_right(single_host(GetParam())); }
INSTANTIATE_TEST_SUITE_P(Ranks, OnOneHost, ::testing::Range(1, 18));

struct Cluster {
  int hosts, ranks_per_host, rails;
};
class OnSeveralHosts : public ::testing::TestWithParam<Cluster> {};
TEST_P(OnSeveralHosts, EveryAlgorithmComputesItsCollective) {
  const Cluster c = GetParam();
  expect_all_right(uniform_hosts(c.hosts, c.ranks_per_host, c.rails));
}
INSTANTIATE_TEST_SUITE_P(Clusters, OnSeveralHosts,
                         ::testing::Values(Cluster{2, 1, 1}, Cluster{2, 1, 4}, Cluster{2, 2, 2}, Cluster{3, 1, 2},
                                           Cluster{3, 2, 3}, Cluster{4, 1, 4}, Cluster{4, 2, 4}, Cluster{2, 3, 2},
                                           Cluster{5, 3, 1}, Cluster{4, 4, 4}));

TEST(OnOddHosts, InterleavedAndUnevenHostsWork) {
  expect_all_right({{0, 1, 0, 1, 0, 1}, 2});
  expect_all_right({{7, 7, 7, 3, 3}, 3});
  expect_all_right({{0, 1, 2, 2, 1, 0, 0}, 2});
}

TEST(ManyRanks, EveryAlgorithmIsProvenAtThirtyTwoAndSixtyFour) {
  expect_all_right(single_host(32), false);
  expect_all_right(single_host(64), false);
  expect_all_right(uniform_hosts(8, 4, 4), false);
}

TEST(Lowering, ARankAloneLowersToItsPartOfTheWhole) {
  for (const Topology& topology : {single_host(5), uniform_hosts(3, 2, 2)}) {
    for (const BuiltIn& entry : built_ins()) {
      for (int c = 0; c < kCollectives; ++c) {
        const auto collective = static_cast<Collective>(c);
        if (!entry.makes(collective)) continue;
        const Algorithm algorithm = *build(entry.name, collective, topology, 0);
        Plan whole = *lower(algorithm, topology);
        for (int rank = 0; rank < whole.ranks; ++rank) {
          Plan expected = whole;
          expected.rank_plans = {whole.rank_plans[static_cast<size_t>(rank)]};
          EXPECT_EQ(serialize(*lower(algorithm, topology, rank)), serialize(expected)) << entry.name;
        }
      }
    }
  }
}

TEST(Lowering, TheClaimsOfRendezvousAreTheseAndNoOthers) {
  const Topology one = single_host(4);
  EXPECT_TRUE(lower(*build("direct", Collective::AllReduce, one), one)->rendezvous_safe);
  EXPECT_TRUE(lower(*build("direct", Collective::AllGather, one), one)->rendezvous_safe);
  EXPECT_TRUE(lower(*build("direct", Collective::AllToAll, one), one)->rendezvous_safe);
  EXPECT_TRUE(lower(*build("ring", Collective::AllReduce, one), one)->rendezvous_safe);
  Plan exchange = *lower(*build("one_shot", Collective::AllReduce, one), one);
  EXPECT_FALSE(exchange.rendezvous_safe);
  exchange.rendezvous_safe = true;
  const Status status = verify(exchange);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("without slots"), std::string::npos) << status.message();
}

TEST(Lowering, OneRankCopiesItsInputAndTalksToNobody) {
  for (const BuiltIn& entry : built_ins()) {
    for (int c = 0; c < kCollectives; ++c) {
      const auto collective = static_cast<Collective>(c);
      if (!entry.makes(collective)) continue;
      const Plan plan = *lower(*build(entry.name, collective, single_host(1)), single_host(1));
      ASSERT_EQ(plan.rank_plans[0].thread_blocks.size(), 1u);
      EXPECT_TRUE(plan.rank_plans[0].connections.empty());
      EXPECT_EQ(plan.rank_plans[0].thread_blocks[0].instructions[0].opcode, Opcode::Copy);
    }
  }
}

TEST(Lowering, ARingBetweenHostsIsFused) {
  const Topology topology = uniform_hosts(4, 1, 2);
  const Plan plan = *lower(*build("ring", Collective::AllReduce, topology), topology);
  std::vector<int> seen(kOpcodes, 0);
  for (const auto& tb : plan.rank_plans[0].thread_blocks) {
    for (const auto& i : tb.instructions) ++seen[static_cast<size_t>(i.opcode)];
  }
  // Per rail: n - 2 reduce and pass on, one keeps as well, n - 2 copy and pass on, one send begins, one receive ends.
  EXPECT_EQ(seen[static_cast<size_t>(Opcode::RecvReduceSend)], 4);
  EXPECT_EQ(seen[static_cast<size_t>(Opcode::RecvReduceCopySend)], 2);
  EXPECT_EQ(seen[static_cast<size_t>(Opcode::RecvCopySend)], 4);
  EXPECT_EQ(seen[static_cast<size_t>(Opcode::Send)], 2);
  EXPECT_EQ(seen[static_cast<size_t>(Opcode::Recv)], 2);
  EXPECT_EQ(plan.rank_plans[0].thread_blocks.size(), 2u);
}

// Elements that cross each (host, rail), by direction.
std::vector<std::vector<int64_t>> loads(const Algorithm& algorithm, const Topology& topology) {
  const size_t hosts = ranks_by_host(topology).size();
  std::vector<std::vector<int64_t>> load(2 * hosts, std::vector<int64_t>(static_cast<size_t>(topology.rails), 0));
  for (const Transfer& t : algorithm.transfers) {
    const auto from = static_cast<size_t>(topology.host_of_rank[static_cast<size_t>(t.src)]);
    const auto to = static_cast<size_t>(topology.host_of_rank[static_cast<size_t>(t.dst)]);
    if (from == to) continue;
    ++load[2 * from][static_cast<size_t>(t.rail)];
    ++load[2 * to + 1][static_cast<size_t>(t.rail)];
  }
  return load;
}

TEST(Hierarchical, EveryRailCarriesTheOptimumAndNoMoreInBothDirections) {
  for (const Cluster c : {Cluster{4, 1, 4}, Cluster{4, 4, 4}, Cluster{3, 2, 4}, Cluster{4, 4, 2}, Cluster{2, 3, 2}}) {
    const Topology topology = uniform_hosts(c.hosts, c.ranks_per_host, c.rails);
    SCOPED_TRACE(std::to_string(c.hosts) + "x" + std::to_string(c.ranks_per_host) + "x" + std::to_string(c.rails));
    const auto expect_even = [&](Collective collective, int64_t numerator, int64_t denominator) {
      const Algorithm algorithm = *build("hierarchical", collective, topology);
      for (const auto& rails : loads(algorithm, topology)) {
        for (const int64_t load : rails) {
          EXPECT_EQ(load * denominator * c.rails, numerator * algorithm.chunks) << name_of(collective);
        }
      }
    };
    expect_even(Collective::AllReduce, 2 * (c.hosts - 1), c.hosts);
    expect_even(Collective::AllGather, c.hosts - 1, c.hosts);
    expect_even(Collective::ReduceScatter, c.hosts - 1, c.hosts);
    // The root's host sends the data once in all; nobody sends or receives more.
    const Algorithm broadcast = *build("hierarchical", Collective::Broadcast, topology);
    for (const auto& rails : loads(broadcast, topology)) {
      for (const int64_t load : rails) EXPECT_LE(load * c.rails, broadcast.chunks);
    }
  }
}

// The connections of ResCCL's Figure: 2 for each local peer, 2 for the lane; and rails that carry the optimum, evenly.
TEST(HierarchicalMesh, HasTheConnectionsOfThePaperAndEvenRails) {
  for (const Cluster c : {Cluster{2, 4, 4}, Cluster{4, 8, 4}, Cluster{3, 2, 2}, Cluster{4, 1, 2}}) {
    const Topology topology = uniform_hosts(c.hosts, c.ranks_per_host, c.rails);
    for (const Collective collective : {Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter}) {
      const Algorithm algorithm = *build("hm", collective, topology);
      const int64_t ways = collective == Collective::AllReduce ? 2 : 1;
      for (const auto& rails : loads(algorithm, topology)) {
        for (const int64_t load : rails) {
          EXPECT_EQ(load * c.hosts * c.rails, ways * (c.hosts - 1) * algorithm.chunks) << algorithm.name;
        }
      }
      const Plan plan = *lower(algorithm, topology);
      const int lanes = std::max(1, c.rails / c.ranks_per_host);
      for (const RankPlan& part : plan.rank_plans) {
        EXPECT_EQ(part.connections.size(), static_cast<size_t>(2 * (c.ranks_per_host - 1) + 2 * lanes));
      }
    }
  }
}

TEST(AllToAll, RailsBetweenHostsAreEquallyLoaded) {
  const Topology topology = uniform_hosts(3, 2, 4);
  for (const char* name : {"direct", "pairwise"}) {
    for (const auto& rails : loads(*build(name, Collective::AllToAll, topology), topology)) {
      for (const int64_t load : rails) EXPECT_EQ(load, rails[0]) << name;
    }
  }
}

TEST(Pairwise, RoundsAreDisjointPairs) {
  for (const int ranks : {2, 5, 8}) {
    const Algorithm algorithm = *build("pairwise", Collective::AllToAll, single_host(ranks));
    std::vector<std::vector<int>> sends(static_cast<size_t>(ranks), std::vector<int>(static_cast<size_t>(ranks), 0));
    auto receives = sends;
    for (const Transfer& t : algorithm.transfers) {
      EXPECT_EQ(++sends[static_cast<size_t>(t.step)][static_cast<size_t>(t.src)], 1);
      EXPECT_EQ(++receives[static_cast<size_t>(t.step)][static_cast<size_t>(t.dst)], 1);
    }
  }
}

TEST(Registry, RefusalsNameWhatThereIs) {
  const auto unknown = build("rnig", Collective::Broadcast, single_host(2));
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.status().message().find("'rnig'"), std::string::npos);
  EXPECT_NE(unknown.status().message().find("direct, ring, tree, hierarchical"), std::string::npos);
  EXPECT_FALSE(build("pairwise", Collective::AllReduce, single_host(2)).ok());
  EXPECT_FALSE(build("tree", Collective::Broadcast, single_host(2), 2).ok());
  EXPECT_FALSE(build("hierarchical", Collective::AllReduce, {{0, 0, 1}, 1}).ok());
}

}  // namespace
}  // namespace theseus
