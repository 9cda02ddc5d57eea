// What the verifier refuses, it says where, and shows; and it refuses nothing that is ordered in a roundabout way.
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "compiler/compile.h"
#include "compiler/registry.h"
#include "compiler/verify.h"
#include "unit/compiler/simulator.h"

namespace theseus {
namespace {

using testing::RunOptions;
using testing::simulate;

Connection to(int peer, int16_t channel = 0) { return {peer, true, 0, channel}; }
Connection from(int peer, int16_t channel = 0) { return {peer, false, 0, channel}; }
constexpr Place kNone{Buffer::None, 0};
Place input(int index) { return {Buffer::Input, index}; }
Place output(int index) { return {Buffer::Output, index}; }
Place scratch(int index) { return {Buffer::Scratch, index}; }

Instruction send(int16_t connection, Place src, std::vector<Dependency> waits = {}, int sub_pipeline = 0) {
  return {Opcode::Send, false, -1, connection, src, kNone, sub_pipeline, {}, std::move(waits)};
}
Instruction recv(int16_t connection, Place dst, std::vector<Dependency> waits = {}, int sub_pipeline = 0) {
  return {Opcode::Recv, false, connection, -1, kNone, dst, sub_pipeline, {}, std::move(waits)};
}
Instruction copy(Place src, Place dst, std::vector<Dependency> waits = {}) {
  return {Opcode::Copy, false, -1, -1, src, dst, 0, {}, std::move(waits)};
}

// Rank 0 sends its data to rank 1, which parks it in scratch, keeps a copy and sends it back. Rank 0 goes on to the
// next micro-batch only after that, so nothing but the messages keeps rank 1 from overwriting its scratch too early.
Plan echo(bool rendezvous_safe = false) {
  Plan plan;
  plan.name = "echo";
  plan.collective = Collective::Broadcast;
  plan.ranks = 2;
  plan.rendezvous_safe = rendezvous_safe;
  plan.rank_plans = {{0, {to(1), from(1)}, {{{send(0, input(0)), recv(1, output(0))}}}, 0},
                     {1,
                      {from(0), to(0)},
                      {{{recv(0, scratch(0))}}, {{copy(scratch(0), output(0), {{0, 0, 0}}), send(1, scratch(0))}}},
                      1}};
  return plan;
}

std::optional<Refusal> refusal_of(const Plan& plan, const VerifyOptions& options = {}) {
  return find_fault(plan, options);
}

TEST(Verify, ScratchMayBeOrderedThroughOtherRanksFromOneMicroBatchToTheNext) {
  for (const bool by_reference : {false, true}) {
    const Plan plan = echo(by_reference);
    EXPECT_FALSE(refusal_of(plan)) << refusal_of(plan)->text;
    for (uint64_t seed = 0; seed < 50; ++seed) {
      EXPECT_EQ(simulate(plan, {9, 2, 1 + static_cast<int>(seed % 3), false, by_reference, seed}), "");
    }
  }
  // Without the answer nothing orders them.
  Plan plan = echo();
  plan.rank_plans[0].thread_blocks = {{{send(0, input(0))}}, {{recv(1, output(0))}}};
  const auto refusal = refusal_of(plan);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->kind, FaultKind::Race);
  EXPECT_EQ(refusal->micro_batches, 2);
  EXPECT_EQ(std::tuple(refusal->rank, refusal->tb, refusal->step), std::tuple(1, 0, 0));
  EXPECT_NE(refusal->text.find("of the next micro-batch races with rank 1, TB 1"), std::string::npos) << refusal->text;
  // The two that race come last; what leads there, and no more, comes before.
  const std::vector<Occurrence> expected{{0, 0, 0, 0}, {1, 0, 0, 0}, {1, 1, 0, 0},
                                         {0, 0, 0, 1}, {1, 0, 0, 1}, {1, 1, 1, 0}};
  EXPECT_EQ(refusal->interleaving, expected);
}

TEST(Verify, ReferencesOutliveTheirTurn) {
  // One TB of rank 1 does it all: it has issued the Send before it overwrites the scratch, but a reference stays.
  Plan plan = echo(true);
  plan.rank_plans[0].thread_blocks = {{{send(0, input(0))}}, {{recv(1, output(0))}}};
  auto& block = plan.rank_plans[1].thread_blocks;
  block = {{{recv(0, scratch(0)), copy(scratch(0), output(0)), send(1, scratch(0))}}};
  const auto refusal = refusal_of(plan);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->kind, FaultKind::Race);
  ASSERT_TRUE(refusal->reference);
  EXPECT_EQ(*refusal->reference, (Occurrence{1, 0, 2, 0}));
  EXPECT_EQ(refusal->interleaving.back(), (Occurrence{1, 0, 0, 1}));
  // The simulator sees it too.
  bool seen = false;
  for (uint64_t seed = 0; seed < 50; ++seed) seen |= !simulate(plan, {9, 2, 2, false, true, seed}).empty();
  EXPECT_TRUE(seen);
  // Waiting for the Send's end helps, and so does not passing references.
  block[0].instructions[0].dependencies = {{0, 1, 2}};
  EXPECT_FALSE(refusal_of(plan));
  block[0].instructions[0].dependencies.clear();
  plan.rendezvous_safe = false;
  EXPECT_FALSE(refusal_of(plan));
}

TEST(Verify, SubPipelinesGiveEachMicroBatchItsScratch) {
  Plan plan = echo();
  plan.rank_plans[0].thread_blocks = {{{send(0, input(0))}}, {{recv(1, output(0))}}};
  ASSERT_TRUE(refusal_of(plan));
  plan.loop = LoopOrder::SubPipelines;
  EXPECT_FALSE(refusal_of(plan)) << refusal_of(plan)->text;
  for (uint64_t seed = 0; seed < 20; ++seed) EXPECT_EQ(simulate(plan, {9, 2, 2, false, false, seed}), "");
}

TEST(Verify, MessagesStayInTheirSubPipeline) {
  // Two messages on one connection; with several micro-batches the sender would send 0 0 .. 1 1 .., the receiver
  // expect 0 1 0 1 ..
  Plan plan;
  plan.name = "crossed";
  plan.collective = Collective::Broadcast;
  plan.ranks = 2;
  plan.chunks_per_block = 2;
  plan.rank_plans = {
      {0,
       {to(1)},
       {{{send(0, input(0)), send(0, input(1), {}, 1)}}, {{copy(input(0), output(0)), copy(input(1), output(1))}}},
       0},
      {1, {from(0)}, {{{recv(0, output(0)), recv(0, output(1))}}}, 0}};
  EXPECT_FALSE(refusal_of(plan));
  plan.loop = LoopOrder::SubPipelines;
  const auto refusal = refusal_of(plan);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->kind, FaultKind::Structure);
  EXPECT_EQ(std::tuple(refusal->rank, refusal->tb, refusal->step, refusal->chunk), std::tuple(1, 0, 1, 1));
  EXPECT_NE(simulate(plan, {8, 1, 2, false, false, 1}), "");
  plan.rank_plans[1].thread_blocks[0].instructions[1].sub_pipeline = 1;
  EXPECT_FALSE(refusal_of(plan));
  EXPECT_EQ(simulate(plan, {8, 1, 2, false, false, 1}), "");
}

TEST(Verify, NothingWaitsForALaterSubPipeline) {
  Plan plan;
  plan.name = "early";
  plan.collective = Collective::AllReduce;
  plan.chunks_per_block = 2;
  plan.loop = LoopOrder::SubPipelines;
  Instruction later = copy(input(1), output(1));
  later.sub_pipeline = 1;
  plan.rank_plans = {{0, {}, {{{copy(input(0), output(0), {{1, 0, 0}})}}, {{later}}}, 0}};
  const auto refusal = refusal_of(plan);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->kind, FaultKind::Structure);
  EXPECT_NE(refusal->text.find("waits for rank 0, TB 1, step 0"), std::string::npos) << refusal->text;
}

TEST(Verify, DeadlocksAreShownUpToWhereNothingGoesOn) {
  const Topology topology = uniform_hosts(3, 1, 1);
  const Plan plan = *lower(*build("ring", Collective::AllReduce, topology), topology);
  VerifyOptions options;
  options.slots = 1;
  const auto refusal = refusal_of(plan, options);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->kind, FaultKind::Deadlock);
  EXPECT_EQ(refusal->slots, 1);
  EXPECT_GE(refusal->chunk, 0);
  // Every rank has sent what it can, and none can go on.
  std::set<int> ranks;
  for (const Occurrence& each : refusal->interleaving) ranks.insert(each.rank);
  EXPECT_EQ(ranks.size(), 3u);
}

TEST(Verify, EndsThatCountDifferentlyAreShownByARun) {
  Plan plan = *lower(*build("direct", Collective::AllGather, single_host(2)), single_host(2));
  plan.rank_plans[0].thread_blocks[1].instructions.clear();
  const auto refusal = refusal_of(plan);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->kind, FaultKind::Structure);
  EXPECT_FALSE(refusal->interleaving.empty());
}

TEST(Verify, LimitsAreOptions) {
  const Plan plan = *lower(*build("direct", Collective::AllReduce, single_host(4)), single_host(4));
  VerifyOptions options;
  options.max_thread_blocks = static_cast<int>(plan.rank_plans[0].thread_blocks.size());
  options.max_connections = static_cast<int>(plan.rank_plans[0].connections.size());
  EXPECT_FALSE(refusal_of(plan, options));
  --options.max_thread_blocks;
  auto refusal = refusal_of(plan, options);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->kind, FaultKind::Limit);
  EXPECT_NE(refusal->text.find("TBs are more than the"), std::string::npos) << refusal->text;
  options.max_thread_blocks = 0;
  --options.max_connections;
  refusal = refusal_of(plan, options);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->kind, FaultKind::Limit);
}

TEST(Verify, NothingPassesUnexamined) {
  const Plan good = *lower(*build("direct", Collective::AllToAll, single_host(2)), single_host(2));
  VerifyOptions neither;
  neither.in_place = neither.out_of_place = false;
  EXPECT_EQ(refusal_of(good, neither)->kind, FaultKind::Options);
  neither.in_place = true;  // which AllToAll has not
  EXPECT_EQ(refusal_of(good, neither)->kind, FaultKind::Options);
  VerifyOptions negative;
  negative.slots = -1;
  EXPECT_EQ(refusal_of(good, negative)->kind, FaultKind::Options);

  Plan nobody = good;
  nobody.ranks = 0;
  nobody.rank_plans.clear();
  EXPECT_EQ(refusal_of(nobody)->kind, FaultKind::Structure);
  Plan no_chunks = good;
  no_chunks.chunks_per_block = 0;
  EXPECT_EQ(refusal_of(no_chunks)->kind, FaultKind::Structure);
  Plan no_parts = good;
  no_parts.rank_plans.clear();
  EXPECT_EQ(refusal_of(no_parts)->kind, FaultKind::Structure);

  // A rank that should receive has an empty part, and nobody sends to it.
  for (int c = 0; c < kCollectives; ++c) {
    Plan idle;
    idle.name = "idle";
    idle.collective = static_cast<Collective>(c);
    if (!has_plans(idle.collective)) continue;
    idle.ranks = 2;
    idle.rank_plans = {{0, {}, {}, 0}, {1, {}, {}, 0}};
    const auto refusal = refusal_of(idle);
    ASSERT_TRUE(refusal) << name_of(idle.collective);
    EXPECT_EQ(refusal->kind, FaultKind::Value);
    EXPECT_NE(refusal->text.find("is never written"), std::string::npos) << refusal->text;
    VerifyOptions in_place;
    in_place.out_of_place = false;
    if (idle.collective == Collective::AllToAll) continue;  // which has no such form
    EXPECT_TRUE(refusal_of(idle, in_place)) << name_of(idle.collective);
  }
}

TEST(Verify, AnInputMustNotBeScaledTwice) {
  // In place the second copy reads what the first has scaled.
  Plan plan;
  plan.name = "twice";
  plan.collective = Collective::AllReduce;
  plan.rank_plans = {{0, {}, {{{copy(input(0), output(0)), copy(input(0), output(0))}}}, 0}};
  const auto refusal = refusal_of(plan);
  ASSERT_TRUE(refusal);
  EXPECT_TRUE(refusal->in_place);
  EXPECT_EQ(refusal->step, 1);
  VerifyOptions options;
  options.scaled_input = false;
  EXPECT_FALSE(refusal_of(plan, options));
  options.scaled_input = true;
  options.in_place = false;
  EXPECT_FALSE(refusal_of(plan, options));
}

TEST(Verify, CopiesOfAPlaceOntoItselfCountOutOfPlace) {
  // In place the data is there already; out of place the Send may come before the Copy.
  Plan plan;
  plan.name = "early";
  plan.collective = Collective::Broadcast;
  plan.ranks = 2;
  plan.rank_plans = {{0, {to(1)}, {{{copy(input(0), output(0))}}, {{send(0, output(0))}}}, 0},
                     {1, {from(0)}, {{{recv(0, output(0))}}}, 0}};
  auto refusal = refusal_of(plan);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->kind, FaultKind::Race);
  EXPECT_FALSE(refusal->in_place);
  VerifyOptions in_place;
  in_place.out_of_place = false;
  EXPECT_FALSE(refusal_of(plan, in_place));
  plan.rank_plans[0].thread_blocks[1].instructions[0].dependencies = {{0, 0, 0}};
  EXPECT_FALSE(refusal_of(plan));
}

TEST(Verify, WhatIsRightOutOfPlaceMayBeWrongInPlace) {
  // The first copy overwrites what the second reads.
  Plan plan;
  plan.name = "clobber";
  plan.collective = Collective::Broadcast;
  plan.chunks_per_block = 2;
  plan.rank_plans = {{0, {}, {{{copy(input(1), output(0)), copy(input(0), output(0)), copy(input(1), output(1))}}}, 0}};
  const auto refusal = refusal_of(plan);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->kind, FaultKind::Value);
  EXPECT_TRUE(refusal->in_place);
  VerifyOptions apart;
  apart.in_place = false;
  EXPECT_FALSE(refusal_of(plan, apart));
}

TEST(Verify, LengthsMatterWhereCountsMay) {
  // Chunk 0 is parked in the place of chunk 1, which may be shorter.
  Plan plan;
  plan.name = "parked";
  plan.collective = Collective::AllReduce;
  plan.chunks_per_block = 2;
  plan.rank_plans = {
      {0, {}, {{{copy(input(0), output(1)), copy(output(1), output(0)), copy(input(1), output(1))}}}, 0}};
  VerifyOptions options;
  options.in_place = false;
  EXPECT_FALSE(refusal_of(plan, options));
  options.any_count = true;
  const auto refusal = refusal_of(plan, options);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->kind, FaultKind::Value);
  EXPECT_EQ(refusal->step, 0);
}

TEST(Verify, ContributionsAreCountedExactlyHoweverOftenTheyDouble) {
  // Sixty doublings: no number of leaves that could be written down.
  Plan plan;
  plan.name = "doubling";
  plan.collective = Collective::AllReduce;
  auto& list = plan.rank_plans.emplace_back().thread_blocks.emplace_back().instructions;
  list.push_back(copy(input(0), output(0)));
  for (int i = 0; i < 60; ++i) {
    list.push_back(copy(output(0), scratch(0)));
    list.push_back({Opcode::Reduce, false, -1, -1, scratch(0), output(0), 0, {}, {}});
  }
  plan.rank_plans[0].scratch_chunks = 1;
  const auto refusal = refusal_of(plan);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(std::tuple(refusal->kind, refusal->rank, refusal->step, refusal->chunk),
            std::tuple(FaultKind::Value, 0, 2, 0));
  EXPECT_NE(refusal->text.find("counts the contribution of rank 0 to chunk 0 twice"), std::string::npos);
}

TEST(Verify, BoundsWhatAFewBytesCanCost) {
  // Many TBs that wait for each other make clocks large.
  Plan plan;
  plan.name = "wide";
  plan.collective = Collective::AllReduce;
  auto& blocks = plan.rank_plans.emplace_back().thread_blocks;
  for (int16_t tb = 0; tb < 2000; ++tb) {
    auto& list = blocks.emplace_back().instructions;
    list.push_back({Opcode::Nop, false, -1, -1, kNone, kNone, 0, {}, {}});
    if (tb > 0) list[0].dependencies = {{static_cast<int16_t>(tb - 1), 0, 0}};
  }
  blocks.back().instructions.push_back(copy(input(0), output(0)));
  EXPECT_FALSE(refusal_of(plan));
  VerifyOptions options;
  options.work_limit = 1 << 20;
  const auto refusal = refusal_of(plan, options);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->kind, FaultKind::TooLarge);
  EXPECT_EQ(verify(plan, options).code(), Code::InvalidUsage);
}

TEST(Verify, SaysTheSameEveryTime) {
  const Topology topology = uniform_hosts(2, 4, 2);
  Plan plan = *compile(*build("hierarchical", Collective::AllReduce, topology), topology);
  for (RankPlan& part : plan.rank_plans) {
    for (ThreadBlock& block : part.thread_blocks) {
      for (Instruction& i : block.instructions) i.dependencies.clear();
    }
  }
  const auto first = refusal_of(plan);
  ASSERT_TRUE(first);
  const auto second = refusal_of(plan);
  EXPECT_EQ(first->text, second->text);
  EXPECT_EQ(first->interleaving, second->interleaving);
}

}  // namespace
}  // namespace theseus
