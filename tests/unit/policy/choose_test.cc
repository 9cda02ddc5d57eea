// The default choice, and what THESEUS_ALGO makes of it.
#include <gtest/gtest.h>

#include "compiler/lower.h"
#include "policy/choose.h"
#include "schedule/places.h"

namespace theseus {
namespace {

std::string chosen(Collective collective, uint64_t bytes, const Topology& topology, const std::string& algo = "") {
  return choose({collective, bytes, summary_of(topology)}, *parse_algo(algo)).algorithm;
}

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB;

TEST(Choose, TwoRanksOfOneHostAlwaysExchange) {
  for (uint64_t bytes = 1; bytes <= 1024 * kMiB; bytes *= 4) {
    EXPECT_EQ(chosen(Collective::AllReduce, bytes, single_host(2)), "one_shot") << bytes;
  }
}

TEST(Choose, OneHostGoesFromOneShotToDirect) {
  for (const int ranks : {4, 8}) {
    EXPECT_EQ(chosen(Collective::AllReduce, 8, single_host(ranks)), "one_shot");
    EXPECT_EQ(chosen(Collective::AllReduce, kKiB, single_host(ranks)), "one_shot");
    EXPECT_EQ(chosen(Collective::AllReduce, 64 * kMiB, single_host(ranks)), "direct");
    EXPECT_EQ(chosen(Collective::AllGather, 64 * kMiB, single_host(ranks)), "direct");
    EXPECT_EQ(chosen(Collective::ReduceScatter, 64 * kMiB, single_host(ranks)), "direct");
    EXPECT_EQ(chosen(Collective::AllToAll, 64 * kMiB, single_host(ranks)), "direct");
    EXPECT_EQ(chosen(Collective::Broadcast, 64 * kMiB, single_host(ranks)), "direct");
  }
}

TEST(Choose, SeveralHostsUseAllRailsForLargeMessages) {
  for (const Topology& topology : {uniform_hosts(4, 1, 4), uniform_hosts(4, 4, 4), uniform_hosts(2, 2, 2)}) {
    for (const Collective collective :
         {Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter, Collective::Broadcast}) {
      const Choice choice = choose({collective, 64 * kMiB, summary_of(topology)}, {});
      const Algorithm algorithm = *build(choice.algorithm, collective, topology);
      std::vector<int> load(static_cast<size_t>(topology.rails), 0);
      const ptrdiff_t hosts = static_cast<ptrdiff_t>(ranks_by_host(topology).size());
      ASSERT_GT(hosts, 1);
      for (const Transfer& t : algorithm.transfers) {
        if (topology.host_of_rank[static_cast<size_t>(t.src)] != topology.host_of_rank[static_cast<size_t>(t.dst)]) {
          ++load[static_cast<size_t>(t.rail < 0 ? t.chunk % topology.rails : t.rail)];
        }
      }
      for (const int rail : load) EXPECT_EQ(rail, load[0]) << choice.algorithm << " " << name_of(collective);
    }
  }
  EXPECT_EQ(chosen(Collective::AllReduce, 64 * kMiB, uniform_hosts(4, 4, 4)), "hm");
}

// One sender a NIC keeps it busy; with several, those that a reduction waits for fall behind, and rails idle.
TEST(Choose, LargeMessagesBetweenHostsOfOneRankGoRoundTheRing) {
  for (const Collective collective :
       {Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter, Collective::Broadcast}) {
    EXPECT_EQ(chosen(collective, 64 * kMiB, uniform_hosts(4, 1, 4)), "ring") << name_of(collective);
  }
}

TEST(Choose, SeveralHostsUseFewStepsForSmallMessages) {
  const std::string small = chosen(Collective::AllReduce, 8, uniform_hosts(8, 8, 4));
  EXPECT_TRUE(small == "doubling" || small == "tree") << small;
}

TEST(Choose, WhatIsChosenCanBeBuiltAndLowered) {
  for (const Topology& topology :
       {single_host(1), single_host(2), single_host(7), uniform_hosts(3, 2, 2), Topology{{0, 0, 1}, 2}}) {
    for (int c = 0; c < kCollectives; ++c) {
      const auto collective = static_cast<Collective>(c);
      if (!has_plans(collective)) continue;
      for (const uint64_t bytes : {uint64_t{0}, uint64_t{8}, kMiB, uint64_t{1} << 60}) {
        const std::string name = chosen(collective, bytes, topology);
        const auto algorithm = build(name, collective, topology, 0);
        ASSERT_TRUE(algorithm.ok()) << algorithm.status().message();
        EXPECT_TRUE(lower(*algorithm, topology, 0).ok());
      }
    }
  }
}

TEST(Choose, ExplainsEveryCandidate) {
  const Choice choice = choose({Collective::AllReduce, 8, summary_of({{0, 0, 1}, 1})}, *parse_algo("^ring"));
  ASSERT_EQ(choice.candidates.size(), 8u);
  for (const Candidate& candidate : choice.candidates) {
    EXPECT_FALSE(candidate.reason.empty());
    const bool is_ring = candidate.algorithm == "ring";
    const bool needs_even = candidate.algorithm == "hierarchical" || candidate.algorithm == "hm";
    const std::string expected = is_ring      ? "ruled out by THESEUS_ALGO"
                                 : needs_even ? "needs the same number of ranks on every host"
                                              : "predicted ";
    EXPECT_EQ(candidate.reason.substr(0, expected.size()), expected) << candidate.algorithm;
    EXPECT_EQ(candidate.usable, !is_ring && !needs_even);
    EXPECT_EQ(candidate.usable, candidate.score > 0);
  }
  EXPECT_NE(choice.reason.find("predicted"), std::string::npos);
}

TEST(Choose, SaysWhenForcedNamesAreSetAside) {
  const Choice choice = choose({Collective::AllToAll, 8, summary_of(single_host(4))}, *parse_algo("ring"));
  EXPECT_EQ(choice.algorithm, "direct");
  EXPECT_NE(choice.reason.find("set aside"), std::string::npos);
  const Choice none = choose({Collective::AllToAllV, 8, summary_of(single_host(4))}, {});
  EXPECT_TRUE(none.algorithm.empty());
  EXPECT_NE(none.reason.find("point-to-point"), std::string::npos);
}

TEST(ParseAlgo, FollowsTheGrammar) {
  const Topology host = single_host(4);
  EXPECT_EQ(chosen(Collective::AllReduce, 8, host, "ring"), "ring");
  EXPECT_EQ(chosen(Collective::AllReduce, 8, host, " Ring , TREE "), "tree");
  EXPECT_EQ(chosen(Collective::AllReduce, 8, host, "^one_shot,doubling,direct"), "tree");
  EXPECT_EQ(chosen(Collective::AllReduce, 64 * kMiB, host, "ring;AllReduce:tree"), "tree");
  EXPECT_EQ(chosen(Collective::Broadcast, 8, host, "ring;allreduce:tree"), "ring");
  const char* const but_ring = "allreduce:ring;allgather:^direct,doubling,hierarchical,hm";
  EXPECT_EQ(chosen(Collective::AllGather, 8, host, but_ring), "ring");
  EXPECT_EQ(chosen(Collective::Broadcast, 8, host, "allreduce:tree"), "direct");
}

TEST(ParseAlgo, RefusalsQuoteTheWord) {
  const auto expect = [](const std::string& value, const std::string& words) {
    const auto forced = parse_algo(value);
    ASSERT_FALSE(forced.ok()) << value;
    EXPECT_NE(forced.status().message().find("THESEUS_ALGO"), std::string::npos);
    EXPECT_NE(forced.status().message().find(words), std::string::npos) << forced.status().message();
  };
  expect("rnig", "'rnig'");
  expect("ring,", "''");
  expect("^", "''");
  expect("sum:ring", "'sum' is no collective");
  expect("allreduce:ring;tree", "must name its collective");
  expect("ring;", "must name its collective");
  expect("allreduce:nvls", "'nvls'; there are: one_shot");
  expect("ring:tree:direct", "'ring' is no collective");
}

}  // namespace
}  // namespace theseus
