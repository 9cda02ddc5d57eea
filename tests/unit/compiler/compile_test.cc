// Whatever compile() makes of the built-in algorithms, under every combination of its options, computes the collective:
// proven by the verifier, and tried on integers with random interleavings.
#include "compiler/compile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "compiler/registry.h"
#include "compiler/verify.h"
#include "schedule/check.h"
#include "unit/compiler/simulator.h"

namespace theseus {
namespace {

using testing::RunOptions;
using testing::simulate;

constexpr Scheduling kTaskSchedulings[] = {Scheduling::Hpds, Scheduling::HpdsImproved, Scheduling::RoundRobin,
                                           Scheduling::AlgorithmLevel, Scheduling::StageLevel};
constexpr TbAllocation kAllocations[] = {TbAllocation::PerConnection, TbAllocation::PerConnectionAndStage,
                                         TbAllocation::StateBased, TbAllocation::StateBasedEven,
                                         TbAllocation::StateBasedApart};

std::string text_of(const CompileOptions& o) {
  return std::string(name_of(o.scheduling)) + " " + name_of(o.allocation) + " " +
         (o.loop == LoopOrder::MicroBatches ? "micro-batches" : "sub-pipelines") + (o.fold ? " fold" : " chain") +
         (o.fuse ? " fuse" : "") + (o.stagger ? " stagger" : "");
}

std::vector<CompileOptions> all_options() {
  std::vector<CompileOptions> all;
  for (const Scheduling scheduling : kTaskSchedulings) {
    for (const TbAllocation allocation : kAllocations) {
      if (scheduling == Scheduling::StageLevel && allocation != TbAllocation::PerConnectionAndStage) continue;
      for (const LoopOrder loop : {LoopOrder::MicroBatches, LoopOrder::SubPipelines}) {
        for (const bool fold : {true, false}) {
          for (const bool fuse : {false, true}) {
            const bool stagger = allocation == TbAllocation::StateBasedEven || (fuse && !fold);
            all.push_back({scheduling, allocation, loop, fold, fuse, stagger});
          }
        }
      }
    }
  }
  return all;
}

// All built-in algorithms of all collectives on `topology`.
std::vector<Algorithm> algorithms_on(const Topology& topology) {
  std::vector<Algorithm> all;
  const bool even = summary_of(topology).ranks_per_host > 0;
  const int ranks = static_cast<int>(topology.host_of_rank.size());
  for (const BuiltIn& entry : built_ins()) {
    for (int c = 0; c < kCollectives; ++c) {
      const auto collective = static_cast<Collective>(c);
      if (!entry.makes(collective) || (entry.needs_even_hosts && !even)) continue;
      all.push_back(*build(entry.name, collective, topology, is_rooted(collective) ? ranks / 2 : 0));
    }
  }
  return all;
}

// Ranks that all reduce one chunk, each for itself, in an order that begins with their own value.
bool may_differ_in_bits(const Algorithm& algorithm, const CompileOptions& options) {
  return !options.fold && algorithm.name == "one_shot" && algorithm.ranks > 2;
}

void expect_proven(const Algorithm& algorithm, const Plan& plan, const CompileOptions& options) {
  for (const int slots : {options.fuse ? 2 : 1, 8}) {
    VerifyOptions verifying;
    verifying.slots = slots;
    verifying.equal_bits = !may_differ_in_bits(algorithm, options);
    const Status status = verify(plan, verifying);
    ASSERT_TRUE(status.ok()) << status.message();
  }
}

void expect_runs(const Plan& plan, int slots, uint64_t seed) {
  for (const bool in_place : {false, true}) {
    if (in_place && plan.collective == Collective::AllToAll) continue;
    RunOptions run{2 * plan.chunks_per_block + 3, 1, slots, in_place, false, seed};
    ASSERT_EQ(simulate(plan, run), "") << "in place " << in_place;
    if (!plan.rendezvous_safe) continue;
    run.by_reference = true;
    ASSERT_EQ(simulate(plan, run), "") << "by reference, in place " << in_place;
  }
}

void expect_all_right(const Topology& topology) {
  uint64_t seed = 1;
  for (const Algorithm& algorithm : algorithms_on(topology)) {
    for (const CompileOptions& options : all_options()) {
      SCOPED_TRACE(algorithm.name + " " + name_of(algorithm.collective) + ": " + text_of(options));
      auto plan = compile(algorithm, topology, options);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      expect_proven(algorithm, *plan, options);
      expect_runs(*plan, options.fuse ? 2 : 1, seed++);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

class EveryOption : public ::testing::TestWithParam<Topology> {};
TEST_P(EveryOption, ComputesItsCollective) { expect_all_right(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Topologies, EveryOption,
                         ::testing::Values(single_host(1), single_host(2), single_host(4), single_host(5),
                                           uniform_hosts(2, 1, 1), uniform_hosts(2, 2, 2), uniform_hosts(3, 2, 3),
                                           uniform_hosts(2, 4, 2), uniform_hosts(4, 1, 2),
                                           Topology{{0, 1, 0, 1, 0, 1}, 2}, Topology{{7, 7, 7, 3, 3}, 3}),
                         [](const auto& info) { return "Topology" + std::to_string(info.index); });

// Transfers at random: mostly nonsense, but whatever they compute, their plans must neither race nor get stuck.
Algorithm random_algorithm(std::mt19937_64& random, const Topology& topology) {
  const auto below = [&](int limit) { return static_cast<int32_t>(random() % static_cast<uint64_t>(limit)); };
  const auto ranks = static_cast<int>(topology.host_of_rank.size());
  const bool scatters = below(2) == 0;  // then some ranks hold chunks in Scratch
  Algorithm algorithm{"random", scatters ? Collective::ReduceScatter : Collective::AllReduce, ranks, ranks, 0, {}};
  for (int i = below(24); i >= 0; --i) {
    const int32_t src = below(ranks);
    const int32_t dst = (src + 1 + below(ranks - 1)) % ranks;
    const TransferOp op = below(4) == 0 ? TransferOp::Copy : TransferOp::Reduce;
    algorithm.transfers.push_back({src, dst, below(5), below(ranks), op, static_cast<int16_t>(below(topology.rails))});
  }
  return algorithm;
}

TEST(Compile, RandomTransfersNeitherRaceNorGetStuck) {
  std::mt19937_64 random(11);
  int compiled = 0;
  for (int round = 0; round < 1500; ++round) {
    const Topology topology = round % 3 == 0   ? single_host(4)
                              : round % 3 == 1 ? uniform_hosts(3, 1, 2)
                                               : uniform_hosts(2, 2, 1);
    const Algorithm algorithm = random_algorithm(random, topology);
    const auto options = all_options();
    const CompileOptions& chosen = options[random() % options.size()];
    const auto plan = compile(algorithm, topology, chosen);
    if (!plan.ok()) continue;
    ++compiled;
    VerifyOptions verifying;
    verifying.slots = chosen.fuse ? 2 : 1;
    const auto refusal = find_fault(*plan, verifying);
    if (!refusal.has_value()) continue;
    ASSERT_EQ(refusal->kind, FaultKind::Value) << text_of(chosen) << ": " << refusal->text;
  }
  EXPECT_GT(compiled, 500);
}

TEST(Compile, ARankAloneGetsItsPartOfTheWhole) {
  for (const Topology& topology : {single_host(4), uniform_hosts(3, 2, 2)}) {
    for (const Algorithm& algorithm : algorithms_on(topology)) {
      for (const CompileOptions& options : all_options()) {
        if (options.scheduling != Scheduling::Hpds && options.fuse) continue;
        const Plan whole = *compile(algorithm, topology, options);
        for (int rank = 0; rank < whole.ranks; ++rank) {
          Plan expected = whole;
          expected.rank_plans = {whole.rank_plans[static_cast<size_t>(rank)]};
          ASSERT_EQ(serialize(*compile(algorithm, topology, options, rank)), serialize(expected))
              << algorithm.name << " " << text_of(options) << " rank " << rank;
        }
      }
    }
  }
}

// The order in which transfers are listed says nothing, so it must not show.
TEST(Compile, TheSameTransfersInAnotherOrderGiveTheSameBytes) {
  std::mt19937_64 random(7);
  const Topology topology = uniform_hosts(2, 3, 2);
  for (Algorithm& algorithm : algorithms_on(topology)) {
    const std::string expected = serialize(*compile(algorithm, topology));
    std::shuffle(algorithm.transfers.begin(), algorithm.transfers.end(), random);
    EXPECT_EQ(serialize(*compile(algorithm, topology)), expected) << algorithm.name;
  }
}

TEST(Compile, PerConnectionIsTheFirstCut) {
  const Topology topology = uniform_hosts(2, 2, 1);
  for (const Algorithm& algorithm : algorithms_on(topology)) {
    const CompileOptions options{.scheduling = Scheduling::PerConnection};
    EXPECT_EQ(serialize(*compile(algorithm, topology, options)), serialize(*lower(algorithm, topology)));
  }
}

// No dependency that program order or another dependency of the TB implies. A TB waits for itself only where a Send
// may have passed a reference.
void expect_minimal(const Plan& plan, const RankPlan& part) {
  const size_t blocks = part.thread_blocks.size();
  for (size_t tb = 0; tb < blocks; ++tb) {
    std::vector<int32_t> waited(2 * blocks, -1);
    for (const Instruction& i : part.thread_blocks[tb].instructions) {
      for (const Dependency& d : i.dependencies) {
        const auto on = static_cast<size_t>(d.tb);
        const size_t row = static_cast<size_t>(d.distance) * blocks + on;
        EXPECT_GT(d.step, waited[row]) << plan.name;
        waited[row] = d.step;
        const Opcode waits_for = part.thread_blocks[on].instructions[static_cast<size_t>(d.step)].opcode;
        EXPECT_TRUE(on != tb || (plan.rendezvous_safe && waits_for == Opcode::Send)) << plan.name;
      }
    }
  }
}

TEST(Compile, WaitsForNothingTwice) {
  for (const Topology& topology : {single_host(6), uniform_hosts(3, 3, 2)}) {
    for (const Algorithm& algorithm : algorithms_on(topology)) {
      for (const CompileOptions& options : all_options()) {
        const Plan plan = *compile(algorithm, topology, options);
        for (const RankPlan& part : plan.rank_plans) expect_minimal(plan, part);
      }
    }
  }
}

size_t most_thread_blocks(const Plan& plan) {
  size_t most = 0;
  for (const RankPlan& part : plan.rank_plans) most = std::max(most, part.thread_blocks.size());
  return most;
}

// ResCCL's Table 3, expert algorithms: MSCCL's 4g - 2 TBs a rank, and 2g or fewer.
TEST(ThreadBlocks, AreThoseOfTable3OrFewer) {
  for (const auto& [hosts, locals] : {std::pair(2, 4), std::pair(2, 8), std::pair(4, 4), std::pair(4, 8)}) {
    const Topology topology = uniform_hosts(hosts, locals, 4);
    for (const Collective collective : {Collective::AllGather, Collective::AllReduce}) {
      SCOPED_TRACE(std::string(name_of(collective)) + " on " + std::to_string(hosts) + "x" + std::to_string(locals));
      const Algorithm algorithm = *build("hm", collective, topology);
      CompileOptions options{.fold = false};
      EXPECT_LE(most_thread_blocks(*compile(algorithm, topology, options)), 2u * static_cast<size_t>(locals));
      options = {
          .scheduling = Scheduling::StageLevel, .allocation = TbAllocation::PerConnectionAndStage, .fold = false};
      EXPECT_EQ(most_thread_blocks(*compile(algorithm, topology, options)), 4u * static_cast<size_t>(locals) - 2);
      for (const Scheduling scheduling : {Scheduling::Hpds, Scheduling::HpdsImproved}) {
        options = {.scheduling = scheduling};
        EXPECT_LE(most_thread_blocks(*compile(algorithm, topology, options)), 2u * static_cast<size_t>(locals));
      }
    }
  }
}

TEST(ThreadBlocks, AreNeverMoreThanThoseOfTheFirstCut) {
  for (const Topology& topology : {single_host(6), uniform_hosts(4, 1, 2), uniform_hosts(2, 4, 2)}) {
    for (const Algorithm& algorithm : algorithms_on(topology)) {
      const size_t first_cut = most_thread_blocks(*lower(algorithm, topology));
      for (const Scheduling scheduling : {Scheduling::Hpds, Scheduling::HpdsImproved}) {
        for (const TbAllocation allocation :
             {TbAllocation::StateBased, TbAllocation::StateBasedEven, TbAllocation::StateBasedApart}) {
          const CompileOptions options{
              .scheduling = scheduling, .allocation = allocation, .fuse = topology.rails == 2 && algorithm.ranks == 4};
          EXPECT_LE(most_thread_blocks(*compile(algorithm, topology, options)), first_cut)
              << algorithm.name << " " << name_of(algorithm.collective) << " " << text_of(options);
        }
      }
    }
  }
}

TEST(ThreadBlocks, AreAsManyOnEveryRankWhereTheyAreEven) {
  const Topology topology = uniform_hosts(2, 4, 2);
  const Algorithm algorithm = *build("hm", Collective::AllGather, topology);
  CompileOptions options{.fold = false};
  const size_t most = most_thread_blocks(*compile(algorithm, topology, options));
  options.allocation = TbAllocation::StateBasedEven;
  const Plan plan = *compile(algorithm, topology, options);
  for (const RankPlan& part : plan.rank_plans) EXPECT_EQ(part.thread_blocks.size(), most);
  // A rank alone makes the same of it.
  const Plan alone = *compile(algorithm, topology, options, 3);
  EXPECT_EQ(alone.rank_plans[0].thread_blocks.size(), most);
}

TEST(ThreadBlocks, OfOtherHostsAreApart) {
  const Topology topology = uniform_hosts(2, 4, 2);
  for (const Algorithm& algorithm : algorithms_on(topology)) {
    const CompileOptions options{.scheduling = Scheduling::HpdsImproved, .allocation = TbAllocation::StateBasedApart};
    const Plan plan = *compile(algorithm, topology, options);
    for (const RankPlan& part : plan.rank_plans) {
      for (const ThreadBlock& tb : part.thread_blocks) {
        std::set<int16_t> ends;
        bool leaves = false;
        bool is_fold = false;
        for (const Instruction& i : tb.instructions) {
          is_fold |= i.opcode == Opcode::Fold;
          for (const int16_t c : {i.send, i.recv}) {
            if (c < 0) continue;
            ends.insert(c);
            leaves |= topology.host_of_rank[static_cast<size_t>(part.connections[static_cast<size_t>(c)].peer)] !=
                      topology.host_of_rank[static_cast<size_t>(part.rank)];
          }
        }
        EXPECT_TRUE(!leaves || is_fold || ends.size() == 1) << algorithm.name << " " << name_of(algorithm.collective);
      }
    }
  }
}

TEST(ThreadBlocks, AreSpreadFromOtherHostsOnwards) {
  // 0 and 1 share, 2 and 3 share; 3 leaves the host, and goes first; then 1 of the busiest.
  const std::vector<ConnectionGroup> groups = {{{0}, {0, 2}}, {{1}, {1}}, {{2}, {0}}, {{3}, {1}, true}};
  EXPECT_EQ(share_thread_blocks(groups, 3), (std::vector<int32_t>{0, 0, 1, 1}));
  EXPECT_EQ(spread_thread_blocks(groups, 3, 2), (std::vector<int32_t>{0, 0, 1, 1}));
  EXPECT_EQ(spread_thread_blocks(groups, 3, 3), (std::vector<int32_t>{0, 0, 1, 2}));
  EXPECT_EQ(spread_thread_blocks(groups, 3, 9), (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(part_thread_blocks(groups, 3), (std::vector<int32_t>{0, 0, 1, 2}));
  EXPECT_TRUE(part_thread_blocks({}, 0).empty());
}

// Where a TB only receives, it copies while it would wait; a TB that sends keeps no peer waiting for a copy.
TEST(ThreadBlocks, CopyOwnChunksWhereNobodyWaitsForThem) {
  const Topology topology = uniform_hosts(2, 2, 2);
  for (const Collective collective : {Collective::AllGather, Collective::AllToAll, Collective::Broadcast}) {
    for (const TbAllocation allocation : kAllocations) {
      const Algorithm algorithm = *build(collective == Collective::Broadcast ? "ring" : "direct", collective, topology);
      const Plan plan = *compile(algorithm, topology, {.allocation = allocation});
      int copies = 0;
      for (const ThreadBlock& tb : plan.rank_plans[0].thread_blocks) {
        bool sends = false;
        int here = 0;
        for (size_t i = 0; i < tb.instructions.size(); ++i) {
          sends |= tb.instructions[i].send >= 0;
          if (tb.instructions[i].opcode != Opcode::Copy) continue;
          EXPECT_EQ(static_cast<size_t>(here), i) << "a copy comes first";
          ++here;
        }
        EXPECT_TRUE(here == 0 || !sends) << name_of(collective) << " " << name_of(allocation);
        copies += here;
      }
      EXPECT_GT(copies, 0);
    }
  }
}

TEST(Compile, StaggersRanksOfOneNic) {
  // Ranks 0 and 2 share a NIC; HPDS lets 0 go first.
  const Topology topology = uniform_hosts(2, 4, 2);
  const Algorithm algorithm = *build("hm", Collective::AllGather, topology);
  const CompileOptions options{.allocation = TbAllocation::PerConnection, .fold = false, .stagger = true};
  const auto waits = [&](const Plan& plan, int rank) {
    const RankPlan& part = plan.rank_plans[static_cast<size_t>(rank)];
    for (const ThreadBlock& tb : part.thread_blocks) {
      for (const Instruction& i : tb.instructions) {
        if (i.send >= 0 && part.connections[static_cast<size_t>(i.send)].peer / 4 != rank / 4) {
          return i.dependencies.size();
        }
      }
    }
    return size_t{99};
  };
  const Plan plan = *compile(algorithm, topology, options);
  EXPECT_EQ(waits(plan, 0), 0u);
  EXPECT_EQ(waits(plan, 2), 1u);
  EXPECT_EQ(waits(*compile(algorithm, topology, {.allocation = TbAllocation::PerConnection, .fold = false}), 2), 0u);
}

TEST(ThreadBlocks, AreSharedByConnectionsThatAreNeverActiveTogether) {
  const std::vector<ConnectionGroup> groups = {{{0}, {0, 1}}, {{1}, {1, 2}}, {{2}, {2, 3}}, {{3}, {0}}, {{4}, {3}}};
  EXPECT_EQ(share_thread_blocks(groups, 4), (std::vector<int32_t>{0, 1, 0, 1, 1}));
  EXPECT_TRUE(share_thread_blocks({}, 0).empty());
}

TEST(Compile, ClaimsRendezvousWhereNobodyExchangesOrFuses) {
  const Topology one = single_host(4);
  EXPECT_TRUE(compile(*build("direct", Collective::AllReduce, one), one)->rendezvous_safe);
  EXPECT_TRUE(compile(*build("ring", Collective::AllReduce, one), one)->rendezvous_safe);
  EXPECT_FALSE(compile(*build("one_shot", Collective::AllReduce, one), one)->rendezvous_safe);
  EXPECT_FALSE(compile(*build("doubling", Collective::AllReduce, one), one)->rendezvous_safe);
  const Topology four = uniform_hosts(4, 1, 2);
  const Algorithm ring = *build("ring", Collective::AllReduce, four);
  EXPECT_TRUE(compile(ring, four)->rendezvous_safe);
  EXPECT_FALSE(compile(ring, four, {.fuse = true})->rendezvous_safe);
}

TEST(Compile, ARingBetweenHostsIsFusedWhereAsked) {
  const Topology topology = uniform_hosts(4, 1, 2);
  const Plan plan = *compile(*build("ring", Collective::AllGather, topology), topology, {.fuse = true});
  int fused = 0;
  for (const ThreadBlock& tb : plan.rank_plans[0].thread_blocks) {
    for (const Instruction& i : tb.instructions) fused += i.opcode == Opcode::RecvCopySend ? 1 : 0;
  }
  EXPECT_GT(fused, 0);
}

// Connections; then each TB with its instructions: sub-pipeline, opcode, source, connections, destination, and what it
// waits for as TB.step, with a ' for the micro-batch before.
std::string text_of(const RankPlan& part) {
  const auto text_of_place = [](Place place) {
    static constexpr const char* names[] = {"", " in", " out", " scratch"};
    const bool none = place.buffer == Buffer::None;
    return names[static_cast<int>(place.buffer)] + (none ? "" : std::to_string(place.index));
  };
  std::string text;
  for (const Connection& c : part.connections) text += (c.outgoing ? ">" : "<") + std::to_string(c.peer) + " ";
  for (size_t tb = 0; tb < part.thread_blocks.size(); ++tb) {
    text += "\nTB" + std::to_string(tb);
    for (const Instruction& i : part.thread_blocks[tb].instructions) {
      text += " | " + std::to_string(i.sub_pipeline) + " " + name_of(i.opcode) + text_of_place(i.src);
      if (i.recv >= 0) text += " <c" + std::to_string(i.recv);
      for (const int16_t operand : i.fold) text += operand == kLocalOperand ? " own" : " <c" + std::to_string(operand);
      if (i.send >= 0) text += " >c" + std::to_string(i.send);
      text += text_of_place(i.dst);
      for (const Dependency& d : i.dependencies) {
        text += " after " + std::to_string(d.tb) + "." + std::to_string(d.step) + (d.distance > 0 ? "'" : "");
      }
    }
  }
  return text;
}

TEST(Golden, PlansOfTheHierarchicalMesh) {
  const Topology topology = uniform_hosts(2, 2, 1);
  const auto rank_0 = [&](Collective collective) {
    return text_of(compile(*build("hm", collective, topology), topology)->rank_plans[0]);
  };
  EXPECT_EQ(rank_0(Collective::AllGather), R"(>1 >2 <1 <2 
TB0 | 0 Send in0 >c0 | 1 Send out2 >c0 after 3.0
TB1 | 0 Send in0 >c1
TB2 | 0 Copy in0 out0 | 0 Recv <c2 out1 | 2 Recv <c2 out3
TB3 | 0 Recv <c3 out2)");
  // Scratch 0 is written again when the send of the micro-batch before is over.
  EXPECT_EQ(rank_0(Collective::ReduceScatter), R"(>1 >2 <1 <2 
TB0 | 0 Send in1 >c0 | 1 Send in3 >c0
TB1 | 0 RecvReduceCopy out0 <c3 out0 after 2.0 | 1 Send scratch0 >c1 after 2.1
TB2 | 0 RecvReduceCopy in0 <c2 out0 | 1 RecvReduceCopy in2 <c2 scratch0 after 1.1')");
}

}  // namespace
}  // namespace theseus
