// The resource tree over the host executor: switching schedules under way, and what a switch builds.
#include "executor/host_builder.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "bench.h"
#include "request.h"

namespace theseus {
namespace {

using testing::after;
using testing::CollectiveCase;
using testing::geometry_of;
using testing::kInput;
using testing::kNone;
using testing::kOutput;
using testing::kScratch;
using testing::make;
using testing::plan_of;
using testing::RankBuffers;
using testing::ShmWorld;

constexpr size_t kSlotBytes = 4096;
constexpr size_t kAmple = 64 << 20;

class Plans final : public ScheduleSource {
 public:
  Result<SchedulePlan> plan_of(uint64_t schedule) override {
    ++asked;
    const auto found = plans.find(schedule);
    if (found == plans.end()) return Status::usage("schedule " + std::to_string(schedule) + " is not loaded");
    return SchedulePlan{found->second, true};
  }
  size_t piece_bytes(const Program&, const ResourceRequest&) override { return kSlotBytes; }

  std::map<uint64_t, std::shared_ptr<const Plan>> plans;
  int asked = 0;
};

// One rank: its plans, builder and tree.
struct Rank {
  Rank(int rank, PortSource& ports, Plans& plans, size_t budget) : builder(rank, ports, plans), tree(builder, budget) {}
  HostBuilder builder;
  ResourceTree tree;
};

ResourceRequest request_of(uint64_t schedule, size_t count, RedOp op = RedOp::Sum, uint64_t family = 0) {
  return {family, schedule, {}, HostBuilder::range_of(count, DataType::Int32, op)};
}

class HostTree : public ::testing::Test {
 protected:
  // `budgets`: bytes, by rank; the last one serves the others.
  void make_ranks(int ranks, std::vector<size_t> budgets) {
    world = std::make_unique<ShmWorld>(geometry_of(ranks, 4, kSlotBytes));
    for (int rank = 0; rank < ranks; ++rank) {
      const size_t budget = budgets[std::min(budgets.size() - 1, static_cast<size_t>(rank))];
      all.push_back(std::make_unique<Rank>(rank, (*world)[rank], plans, budget));
    }
  }

  // Runs one request on all ranks, in one thread; what differs from the reference.
  std::string run(CollectiveCase test, const ResourceRequest& request) {
    std::vector<ResourceTree::Lease> leases;
    for (auto& rank : all) {
      Result<ResourceTree::Lease> lease = rank->tree.walk(request);
      if (!lease.ok()) return lease.status().message();
      leases.push_back(std::move(*lease));
    }
    return run(test, leases);
  }
  std::string run(CollectiveCase test, const std::vector<ResourceTree::Lease>& leases) {
    std::vector<RankBuffers<int32_t>> buffers;
    ++id;
    for (size_t r = 0; r < all.size(); ++r) buffers.emplace_back(test, static_cast<int>(r));
    for (size_t r = 0; r < all.size(); ++r) {
      const HostResources held = host_resources(leases[r]);
      Binding binding;
      binding.input = buffers[r].send();
      binding.output = buffers[r].recv();
      binding.count = test.count;
      binding.type = DataType::Int32;
      binding.op = test.op;
      binding.tag.signature.count = test.count;
      binding.tag.base = base_hash(binding.tag.signature);
      binding.tag.hash = request_hash(binding.tag.base, id);
      held.execution->start(*held.program, *held.shape, binding);
    }
    std::vector<bool> done(all.size());
    for (bool open = true, moved = true; open; moved = false) {
      open = false;
      for (size_t r = 0; r < all.size(); ++r) {
        if (done[r]) continue;
        Execution& execution = *host_resources(leases[r]).execution;
        const Advance state = execution.advance();
        if (state == Advance::Failed) return execution.status().message();
        moved |= state != Advance::Blocked;
        done[r] = state == Advance::Done;
        open |= !done[r];
      }
      if (open && !moved) return test.name() + ": deadlock";
    }
    for (const auto& each : buffers) {
      if (std::string found = each.difference(); !found.empty()) return found;
    }
    return "";
  }

  Plans plans;
  std::unique_ptr<ShmWorld> world;
  std::vector<std::unique_ptr<Rank>> all;
  uint32_t id = 0;
};

// Whatever schedules follow one another, in one family or in several, and whatever the sizes: every request's result is
// right, over the same connections, even where ranks keep different parts of their trees.
TEST_F(HostTree, SwitchesSchedulesBetweenRequests) {
  constexpr int kRanks = 4;
  make_ranks(kRanks, {kAmple, 10'000, 0});
  CollectiveCase test{Collective::AllReduce, kRanks, 1};
  uint64_t schedules = 0;
  for (const BuiltIn& algorithm : built_ins()) {
    if (algorithm.makes(Collective::AllReduce)) {
      plans.plans[schedules++] = std::make_shared<const Plan>(plan_of(algorithm, test));
    }
  }
  ASSERT_GE(schedules, 4u);
  std::mt19937_64 random(7);
  for (int i = 0; i < 400; ++i) {
    test.count = std::vector<size_t>{1, 7, 300, 4001, 20'000}[random() % 5];
    test.op = random() % 2 == 0 ? RedOp::Sum : RedOp::Max;
    const uint64_t schedule = random() % schedules;
    ASSERT_EQ(run(test, request_of(schedule, test.count, test.op, schedule % 2)), "") << "schedule " << schedule;
  }
  const TreeStatistics ample = all[0]->tree.statistics();
  EXPECT_GT(ample.layers[2].visits[static_cast<size_t>(Visit::Migrated)], 0u);
  EXPECT_GT(ample.layers[3].visits[static_cast<size_t>(Visit::Reused)], 0u);
  EXPECT_GT(all[1]->tree.statistics().layers[3].evicted, 0u);
}

// A request that was selected under the old schedule runs to its end with it, on the arena it was given.
TEST_F(HostTree, RunsWhatWasSelectedBeforeASwitch) {
  constexpr int kRanks = 3;
  make_ranks(kRanks, {kAmple});
  CollectiveCase test{Collective::AllReduce, kRanks, 5000};
  plans.plans[1] = std::make_shared<const Plan>(plan_of(*find_built_in("ring"), test));
  plans.plans[2] = std::make_shared<const Plan>(plan_of(*find_built_in("direct"), test));
  std::vector<ResourceTree::Lease> before;
  for (auto& rank : all) before.push_back(std::move(*rank->tree.walk(request_of(1, test.count))));
  CollectiveCase larger = test;
  larger.count = 50'000;
  EXPECT_EQ(run(larger, request_of(2, larger.count)), "");
  EXPECT_EQ(all[0]->tree.last_visits()[1], Visit::Copied);
  EXPECT_EQ(run(test, before), "");
  EXPECT_GT(all[0]->tree.statistics().retired, 0u);
  before.clear();
  EXPECT_EQ(all[0]->tree.statistics().retired, 0u);
  EXPECT_EQ(run(test, request_of(1, test.count)), "");
}

// Rank 0 sends its input to the ranks of `peers`, each by a thread block of its own; the first waits for the last.
Plan star_of(std::vector<int> peers, int scratch_chunks = 0) {
  Plan plan;
  plan.name = "star";
  plan.ranks = 4;
  RankPlan part;
  part.scratch_chunks = scratch_chunks;
  for (const int peer : peers) {
    part.connections.push_back({peer, true});
    const auto connection = static_cast<int>(part.connections.size()) - 1;
    part.thread_blocks.push_back({{make(Opcode::Send, kInput, kNone, -1, connection)}});
  }
  if (scratch_chunks > 0) part.thread_blocks.push_back({{make(Opcode::Copy, kInput, kScratch)}});
  plan.rank_plans.push_back(part);
  return plan;
}

Delta difference(const Delta& now, const Delta& before) {
  return {now.made - before.made, now.shared - before.shared, now.opened - before.opened, now.kept - before.kept};
}

class HostDelta : public HostTree {
 protected:
  void SetUp() override { make_ranks(4, {kAmple}); }
  // What rank 0 does for a request of this schedule.
  Delta walk(uint64_t schedule, uint64_t buffer = 0) {
    const TreeStatistics before = all[0]->tree.statistics();
    ResourceRequest request = request_of(schedule, 100);
    request.buffer.id = buffer;
    Result<ResourceTree::Lease> lease = all[0]->tree.walk(request);
    EXPECT_TRUE(lease.ok());
    program = lease->part<HostProgram>(Layer::Buffer).program;
    const TreeStatistics now = all[0]->tree.statistics();
    Delta delta = difference(now.built, before.built);
    delta.add(difference(now.migrated, before.migrated));
    return delta;
  }
  void add(uint64_t schedule, const Plan& plan) { plans.plans[schedule] = std::make_shared<const Plan>(plan); }

  std::shared_ptr<const Program> program;
};

void expect(const Delta& delta, uint64_t made, uint64_t shared, uint64_t opened, uint64_t kept) {
  EXPECT_EQ(delta.made, made) << "thread blocks made";
  EXPECT_EQ(delta.shared, shared) << "thread blocks shared";
  EXPECT_EQ(delta.opened, opened) << "connections opened";
  EXPECT_EQ(delta.kept, kept) << "connections kept";
}

// Of a schedule that replaces another only the thread blocks that differ are made, and only new connections are opened.
TEST_F(HostDelta, MakesTheDifferenceOnly) {
  add(1, star_of({1, 2}));
  add(2, star_of({1, 3}));
  add(3, star_of({1, 3}, 1));
  add(4, star_of({1, 3}, 1));
  expect(walk(1), 2, 0, 2, 0);
  const Step* first = program->blocks()[0].steps;
  expect(walk(2), 1, 1, 1, 1);
  EXPECT_EQ(program->blocks()[0].steps, first) << "the very same steps";
  expect(walk(3), 1, 2, 0, 2);
  expect(walk(4), 0, 3, 0, 2);
  expect(walk(4), 0, 0, 0, 0);
  // Connections stay open: the way back opens none.
  expect(walk(1), 1, 1, 0, 2);
  EXPECT_EQ(all[0]->builder.connections(), 3u);
}

// A buffer more costs no thread block more, neither before a switch nor after it.
TEST_F(HostDelta, BuffersShareThreadBlocks) {
  add(1, star_of({1, 2, 3}));
  add(2, star_of({1, 3, 2}));
  expect(walk(1, 0), 3, 0, 3, 0);
  expect(walk(1, 1), 0, 3, 0, 3);
  expect(walk(2, 0), 2, 1, 0, 3);
  expect(walk(2, 1), 0, 3, 0, 3);
}

// Thread blocks that look alike but wait for others, loop otherwise, or send on another connection are not shared.
TEST_F(HostDelta, TellsApartWhatDiffersElsewhere) {
  Plan plan = star_of({1, 2}, 1);
  add(1, plan);
  expect(walk(1), 3, 0, 2, 0);
  Instruction& send = plan.rank_plans[0].thread_blocks[0].instructions[0];
  send = after(send, 2, 0);
  add(2, plan);
  expect(walk(2), 1, 2, 0, 2);
  EXPECT_EQ(program->blocks()[0].steps[0].waits.size(), 1u);
  std::swap(plan.rank_plans[0].connections[0], plan.rank_plans[0].connections[1]);
  add(3, plan);
  expect(walk(3), 2, 1, 0, 2);
  plan.chunks_per_block = 2;
  plan.rank_plans[0].thread_blocks[1].instructions[0].src.index = 1;
  add(4, plan);
  // The first one's data no longer goes out twice, so it has no copy to share.
  expect(walk(4), 2, 1, 0, 2);
}

// Groups of sends that share a copy keep their numbers, so that one more does not change the others; numbers that are
// free again are used again.
TEST_F(HostDelta, GroupsOfCopiesKeepTheirNumbers) {
  const auto plan_with = [](std::vector<int> places) {
    Plan plan = star_of({});
    plan.chunks_per_block = 8;
    RankPlan& part = plan.rank_plans[0];
    part.connections = {{1, true}, {2, true}};
    for (const int place : places) {
      part.thread_blocks.push_back({{make(Opcode::Send, {Buffer::Input, place}, kNone, -1, 0),
                                     make(Opcode::Send, {Buffer::Input, place}, kNone, -1, 1)}});
    }
    return plan;
  };
  add(1, plan_with({5}));
  add(2, plan_with({5, 2}));
  add(3, plan_with({7, 2}));
  const auto group = [&](size_t block) { return program->blocks()[block].steps[0].copies; };
  walk(1);
  EXPECT_EQ(group(0), 0);
  expect(walk(2), 1, 1, 0, 2);
  EXPECT_EQ(group(0), 0);
  EXPECT_EQ(group(1), 1);
  expect(walk(3), 1, 1, 0, 2);
  EXPECT_EQ(group(0), 0) << "free again";
  EXPECT_EQ(group(1), 1);
  EXPECT_EQ(program->copy_groups(), 2);
}

// Schedules that replace one another leave nothing behind, and all work in one arena.
TEST_F(HostDelta, FiveHundredSchedulesTakeTheRoomOfOne) {
  size_t largest = 0;
  for (uint64_t schedule = 0; schedule < 500; ++schedule) {
    const auto twisted = static_cast<int>(schedule % 3);
    add(schedule, star_of({1 + twisted, 1 + (twisted + 1) % 3}, 1 + static_cast<int>(schedule % 7)));
    walk(schedule);
    plans.plans.erase(schedule);
    if (schedule < 21) largest = std::max(largest, all[0]->tree.bytes());
  }
  const TreeStatistics now = all[0]->tree.statistics();
  EXPECT_LE(now.bytes, largest);
  EXPECT_EQ(now.arena_bytes, 7 * 100 * sizeof(int32_t));
  for (const LayerStatistics& layer : now.layers) EXPECT_EQ(layer.vertices, 1u);
  EXPECT_FALSE(all[0]->tree.holds(0));
}

// A plan is asked for once in a walk, and not at all by a hit; one that is missing is an error that says so, and the
// schedule before goes on.
TEST_F(HostDelta, AsksForAPlanOnce) {
  add(1, star_of({1}));
  walk(1);
  EXPECT_EQ(plans.asked, 1);
  walk(1);
  EXPECT_EQ(plans.asked, 1);
  const Result<ResourceTree::Lease> missing = all[0]->tree.walk(request_of(9, 100));
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.status().message().find("schedule 9"), std::string::npos);
  expect(walk(1), 0, 0, 0, 0);
}

}  // namespace
}  // namespace theseus
