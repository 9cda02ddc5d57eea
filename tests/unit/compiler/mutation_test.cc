// What the verifier accepts, runs: random damage to good plans, tried on integers with many interleavings. And the
// other way round: damage of a known kind is refused, with its place.
#include <gtest/gtest.h>

#include <random>

#include "compiler/compile.h"
#include "compiler/registry.h"
#include "compiler/verify.h"
#include "unit/compiler/simulator.h"

namespace theseus {
namespace {

using testing::RunOptions;
using testing::simulate;

struct Case {
  const char* name;
  Collective collective;
  Topology topology;
};

std::vector<Case> cases() {
  return {{"one_shot", Collective::AllReduce, single_host(3)},
          {"direct", Collective::AllReduce, single_host(3)},
          {"doubling", Collective::AllReduce, single_host(3)},
          {"ring", Collective::AllReduce, single_host(3)},
          {"ring", Collective::AllReduce, uniform_hosts(3, 1, 1)},
          {"ring", Collective::ReduceScatter, uniform_hosts(3, 1, 1)},
          {"ring", Collective::Broadcast, uniform_hosts(3, 1, 2)},
          {"halving", Collective::ReduceScatter, single_host(4)},
          {"tree", Collective::Reduce, single_host(5)},
          {"tree", Collective::AllReduce, single_host(4)},
          {"hierarchical", Collective::ReduceScatter, uniform_hosts(2, 2, 2)},
          {"hierarchical", Collective::AllReduce, uniform_hosts(2, 2, 1)},
          {"direct", Collective::Scatter, single_host(3)},
          {"pairwise", Collective::AllToAll, single_host(3)}};
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  // One random change. False where the draw found nothing to change.
  bool mutate(Plan& plan) {
    RankPlan& part = plan.rank_plans[below(plan.rank_plans.size())];
    ThreadBlock& tb = part.thread_blocks[below(part.thread_blocks.size())];
    auto& list = tb.instructions;
    if (list.empty()) return false;
    const size_t at = below(list.size());
    Instruction& i = list[at];
    switch (below(13)) {
      case 0: list.erase(list.begin() + static_cast<ptrdiff_t>(at)); return true;
      case 1: list.insert(list.begin() + static_cast<ptrdiff_t>(at), Instruction(i)); return true;
      case 2: {
        const size_t other = below(list.size());
        std::swap(list[at], list[other]);
        return other != at;
      }
      case 3:
        if (i.dependencies.empty()) return false;
        i.dependencies.erase(i.dependencies.begin() + static_cast<ptrdiff_t>(below(i.dependencies.size())));
        return true;
      case 4:
        if (i.dependencies.empty()) return false;
        i.dependencies[below(i.dependencies.size())].distance ^= 1;
        return true;
      case 5: return redirect(i.src, part);
      case 6: return redirect(i.dst, part);
      case 7: i.opcode = static_cast<Opcode>(below(kOpcodes)); return true;
      case 8:
        (below(2) == 0 ? i.recv : i.send) = static_cast<int16_t>(below(part.connections.size() + 1)) - 1;
        return true;
      case 9:
        plan.loop = plan.loop == LoopOrder::SubPipelines ? LoopOrder::MicroBatches : LoopOrder::SubPipelines;
        return true;
      case 10: plan.rendezvous_safe = !plan.rendezvous_safe; return true;
      case 11:
        for (size_t rest = at; rest < list.size(); ++rest) ++list[rest].sub_pipeline;
        return true;
      default: {
        const auto tb_index = static_cast<int16_t>(below(part.thread_blocks.size()));
        const size_t steps = part.thread_blocks[static_cast<size_t>(tb_index)].instructions.size();
        if (steps == 0) return false;
        i.dependencies.push_back({tb_index, static_cast<int16_t>(below(2)), static_cast<int32_t>(below(steps))});
        return true;
      }
    }
  }

 private:
  size_t below(size_t limit) { return limit == 0 ? 0 : static_cast<size_t>(random_() % limit); }
  bool redirect(Place& place, const RankPlan& part) {
    if (place.buffer == Buffer::None) return false;
    if (below(3) == 0) place.buffer = static_cast<Buffer>(1 + below(3));
    place.index = static_cast<int32_t>(
        below(static_cast<size_t>(place.index) + 2 + static_cast<size_t>(part.scratch_chunks > 0)));
    return true;
  }
  std::mt19937_64 random_;
};

struct Tally {
  int refused = 0;
  int accepted = 0;
};

// What the verifier accepts runs right: with as many slots and more, any number of micro-batches, in place or not.
void expect_runs(const Plan& plan, int slots, const std::string& what) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    RunOptions run;
    run.count = static_cast<int64_t>(1 + seed % 3) * plan.chunks_per_block + 1;
    run.slot = 1;
    run.slots = slots + static_cast<int>(seed % 3) * 3;
    run.in_place = seed % 2 == 1 && plan.collective != Collective::AllToAll;
    run.seed = seed;
    ASSERT_EQ(simulate(plan, run), "") << what << " seed " << seed;
    if (!plan.rendezvous_safe) continue;
    run.by_reference = true;
    ASSERT_EQ(simulate(plan, run), "") << what << " seed " << seed << " by reference";
    run.slots = 0;
    ASSERT_EQ(simulate(plan, run), "") << what << " seed " << seed << " without slots";
  }
}

void mutate_and_try(const Plan& good, const std::string& what, int rounds, Tally& tally) {
  Mutator mutator(99);
  for (int round = 0; round < rounds; ++round) {
    Plan plan = good;
    if (!mutator.mutate(plan)) continue;
    VerifyOptions options;
    options.slots = 1 + round % 3;
    options.any_count = true;
    if (const auto refusal = find_fault(plan, options)) {
      ++tally.refused;
      ASSERT_FALSE(refusal->text.empty());
      ASSERT_GE(refusal->rank, 0) << refusal->text;
      continue;
    }
    ++tally.accepted;
    ASSERT_NO_FATAL_FAILURE(expect_runs(plan, options.slots, what + " round " + std::to_string(round)));
  }
}

TEST(Mutations, WhatTheVerifierAcceptsNeverFails) {
  Tally tally;
  for (const Case& c : cases()) {
    const Algorithm algorithm = *build(c.name, c.collective, c.topology, 0);
    ASSERT_NO_FATAL_FAILURE(mutate_and_try(*lower(algorithm, c.topology), c.name, 150, tally));
    for (const LoopOrder loop : {LoopOrder::MicroBatches, LoopOrder::SubPipelines}) {
      CompileOptions options;
      options.loop = loop;
      const std::string what = std::string(c.name) + " loop " + std::to_string(static_cast<int>(loop));
      ASSERT_NO_FATAL_FAILURE(mutate_and_try(*compile(algorithm, c.topology, options), what, 150, tally));
    }
  }
  EXPECT_GT(tally.refused, 2000);
  EXPECT_GT(tally.accepted, 100);  // else nothing was tried
}

Plan good_plan(const char* name, Collective collective, const Topology& topology) {
  return *lower(*build(name, collective, topology), topology);
}

void expect_refused(const Plan& plan, const std::string& words, VerifyOptions options = {}) {
  const Status status = verify(plan, options);
  ASSERT_FALSE(status.ok()) << "expected: " << words;
  EXPECT_EQ(status.code(), Code::InvalidArgument);
  EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
}

Instruction& find(Plan& plan, int rank, Opcode opcode) {
  for (ThreadBlock& tb : plan.rank_plans[static_cast<size_t>(rank)].thread_blocks) {
    for (Instruction& i : tb.instructions) {
      if (i.opcode == opcode) return i;
    }
  }
  ADD_FAILURE() << "no such instruction";
  return plan.rank_plans[0].thread_blocks[0].instructions[0];
}

TEST(Verifier, NamesThePlaceOfALostOrder) {
  // In place, the exchange overwrites what it sends.
  Plan plan = good_plan("one_shot", Collective::AllReduce, single_host(2));
  find(plan, 1, Opcode::RecvReduceCopy).dependencies.clear();
  expect_refused(plan, "in place: rank 1, TB 1, step 0 (RecvReduceCopy, chunk Output[0])");
  VerifyOptions apart;
  apart.in_place = false;
  EXPECT_TRUE(verify(plan, apart).ok());
}

TEST(Verifier, SeesScratchReusedTooEarly) {
  Plan plan = good_plan("tree", Collective::Reduce, single_host(4));
  bool removed = false;
  for (RankPlan& part : plan.rank_plans) {
    for (ThreadBlock& tb : part.thread_blocks) {
      for (Instruction& i : tb.instructions) {
        removed |= std::erase_if(i.dependencies, [](const Dependency& d) { return d.distance == 1; }) > 0;
      }
    }
  }
  ASSERT_TRUE(removed);
  expect_refused(plan, "Scratch[0]");
}

TEST(Verifier, FollowsOrderThroughOtherRanks) {
  // Rank 0 may overwrite what it sent once rank 1 has answered: no dependency says so, the messages do.
  Plan plan;
  plan.name = "ping-pong";
  plan.collective = Collective::AllReduce;
  plan.ranks = 2;
  const auto out = [](int peer) { return Connection{peer, true, 0, 0}; };
  const auto in = [](int peer) { return Connection{peer, false, 0, 0}; };
  Instruction send{Opcode::Send, false, -1, 0, {Buffer::Input, 0}, {}, 0, {}, {}};
  Instruction recv{Opcode::Recv, false, 1, -1, {}, {Buffer::Output, 0}, 0, {}, {}};
  Instruction reduce{Opcode::RecvReduceCopy, true, 1, -1, {Buffer::Input, 0}, {Buffer::Output, 0}, 0, {}, {}};
  Instruction answer{Opcode::Send, false, -1, 0, {Buffer::Output, 0}, {}, 0, {}, {{0, 0, 0}}};
  plan.rank_plans = {{0, {out(1), in(1)}, {{{send}}, {{recv}}}, 0}, {1, {out(0), in(0)}, {{{reduce}}, {{answer}}}, 0}};
  const Status status = verify(plan);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(Verifier, RefusesADeadlockWithItsCircle) {
  // Both receive before they send (what some synthesised schedules do).
  Plan plan = good_plan("direct", Collective::AllGather, single_host(2));
  for (RankPlan& part : plan.rank_plans) {
    part.thread_blocks[0].instructions[0].dependencies = {{1, 0, 0}};
  }
  expect_refused(plan, "deadlocks with 8 slots: rank ");
  expect_refused(plan, "waits for the first of these");
}

TEST(Verifier, CountsSlots) {
  // A fused ring needs two slots; with one, every rank holds what the next has no room for.
  const Plan plan = good_plan("ring", Collective::AllReduce, uniform_hosts(3, 1, 1));
  VerifyOptions options;
  options.slots = 2;
  EXPECT_TRUE(verify(plan, options).ok());
  options.slots = 1;
  expect_refused(plan, "deadlocks with 1 slots", options);
  // Plans without fused instructions need only one.
  EXPECT_TRUE(verify(good_plan("ring", Collective::AllReduce, single_host(3)), options).ok());
  EXPECT_TRUE(verify(good_plan("one_shot", Collective::AllReduce, single_host(3)), options).ok());
}

TEST(Verifier, RefusesWrongSums) {
  Plan twice = good_plan("one_shot", Collective::AllReduce, single_host(3));
  Instruction& fold = find(twice, 2, Opcode::Fold);
  twice.rank_plans[2].thread_blocks.back().instructions.push_back(
      {Opcode::Reduce, false, -1, -1, {Buffer::Input, 0}, fold.dst, 0, {}, {}});
  expect_refused(twice, "counts the contribution of rank 2 to chunk 0 twice");

  Plan lost = good_plan("one_shot", Collective::AllReduce, single_host(2));
  Instruction& reduce = find(lost, 0, Opcode::RecvReduceCopy);
  reduce.opcode = Opcode::Recv;
  reduce.src = {};
  expect_refused(lost, "rank 0, chunk Output[0] lacks the contribution of rank 0; written by rank 0, TB 1, step 0");

  Plan reordered = good_plan("one_shot", Collective::AllReduce, single_host(3));
  std::swap(find(reordered, 1, Opcode::Fold).fold[0], find(reordered, 1, Opcode::Fold).fold[2]);
  expect_refused(reordered, "reduced in another order");
  VerifyOptions any_bits;
  any_bits.equal_bits = false;
  EXPECT_TRUE(verify(reordered, any_bits).ok());
}

TEST(Verifier, RefusesALabelThatDoesNotFit) {
  // An "all-reduce" that only swaps chunks.
  Algorithm swap{"swap", Collective::AllReduce, 2, 2, 0, {{0, 1, 0, 0}, {1, 0, 0, 1}}};
  const Plan plan = *lower(swap, single_host(2));
  VerifyOptions options;
  options.scaled_input = false;  // else its copies race, in place
  expect_refused(plan, "lacks the contribution of rank", options);
}

TEST(Verifier, RefusesEndsThatDisagree) {
  Plan missing = good_plan("direct", Collective::Broadcast, single_host(3));
  missing.rank_plans[2].thread_blocks[0].instructions.clear();
  expect_refused(missing, "connection from rank 0 to rank 2 on rail 0, channel 0: 1 messages are sent and 0 received");

  Plan shared = good_plan("direct", Collective::Broadcast, single_host(3));
  shared.rank_plans[0].thread_blocks.push_back(shared.rank_plans[0].thread_blocks[0]);
  expect_refused(shared, "already belongs to TB 0");

  Plan unpaired = good_plan("direct", Collective::Broadcast, single_host(3));
  unpaired.rank_plans[0].connections[0].rail = 3;
  expect_refused(unpaired, "must have one end at each of both ranks");

  Plan part = *lower(*build("direct", Collective::Broadcast, single_host(3)), single_host(3), 1);
  expect_refused(part, "only a whole plan can be verified");
}

TEST(Verifier, SaysWhenAPlanIsTooLarge) {
  VerifyOptions options;
  options.work_limit = 50;
  const Status status = verify(good_plan("direct", Collective::AllReduce, single_host(8)), options);
  EXPECT_EQ(status.code(), Code::InvalidUsage);
  EXPECT_NE(status.message().find("work_limit"), std::string::npos);
  // A file of a few bytes may claim any number of chunks; nothing is allocated for them.
  Plan vast = good_plan("direct", Collective::Broadcast, single_host(2));
  vast.chunks_per_block = 1 << 29;
  EXPECT_EQ(verify(vast).code(), Code::InvalidUsage);
}

TEST(Lowering, RefusesMalformedAlgorithms) {
  const auto expect = [](Algorithm algorithm, const std::string& words) {
    algorithm.name = "mine";
    const auto plan = lower(algorithm, single_host(algorithm.ranks));
    ASSERT_FALSE(plan.ok()) << words;
    EXPECT_NE(plan.status().message().find(words), std::string::npos) << plan.status().message();
    EXPECT_NE(plan.status().message().find("mine"), std::string::npos) << plan.status().message();
  };
  using C = Collective;
  expect({"", C::AllReduce, 2, 1, 0, {{0, 2, 0, 0}}},
         "transfer 0 -> 2 of chunk 0 at step 0: the algorithm has ranks 0 to 1");
  expect({"", C::AllReduce, 2, 1, 0, {{0, 1, 0, 1}}}, "chunks 0 to 0");
  expect({"", C::AllReduce, 2, 1, 0, {{1, 1, 0, 0}}}, "cannot send to itself");
  expect({"", C::AllReduce, 2, 1, 0, {{0, 1, -1, 0}}}, "steps count from 0");
  expect({"", C::AllReduce, 2, 1, 0, {{0, 1, 0, 0, TransferOp::Copy, 1}}}, "none of the 1 rails");
  expect({"", C::AllGather, 2, 2, 0, {{0, 1, 0, 0, TransferOp::Reduce}}}, "AllGather does not reduce");
  expect({"", C::AllGather, 2, 3, 0, {}}, "3 chunks cannot be cut into 2 equal blocks");
  expect({"", C::AllGather, 2, 2, 0, {{0, 1, 0, 1}}}, "rank 0 does not hold that chunk yet");
  expect({"", C::Broadcast, 3, 1, 1, {{1, 2, 0, 0}, {2, 0, 0, 0}}}, "rank 2 does not hold that chunk yet");
  expect({"", C::AllReduce, 3, 1, 0, {{0, 2, 0, 0}, {1, 2, 0, 0, TransferOp::Reduce}}},
         "receives a copy beside another");
  expect({"", C::AllReduce, 2, 1, 0, {{0, 1, 0, 0}, {0, 1, 0, 0}}}, "occurs twice");
  expect({"", C::Broadcast, 2, 1, 2, {}}, "root 2");
  expect({"", C::AllToAllV, 2, 1, 0, {}}, "has no plans");
}

}  // namespace
}  // namespace theseus
