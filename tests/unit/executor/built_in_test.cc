// Every built-in algorithm, lowered and run over shared memory, against the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "compiler/lower.h"
#include "compiler/registry.h"
#include "executor/execution.h"
#include "shm_world.h"
#include "unit/collectives.h"

namespace theseus {
namespace {

using testing::CollectiveCase;
using testing::geometry_of;
using testing::RankBuffers;
using testing::ShmWorld;

constexpr size_t kSlotBytes = 32 << 10;
constexpr Collective kWithPlans[] = {Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter,
                                     Collective::Broadcast, Collective::Reduce,    Collective::AllToAll,
                                     Collective::Gather,    Collective::Scatter};

// One request on all ranks of a world that outlives it.
template <class T>
class Request {
 public:
  Request(const CollectiveCase& test, const Plan& plan, ShmWorld& world, size_t piece_bytes) : test_(test) {
    for (int rank = 0; rank < test.ranks; ++rank) {
      buffers_.emplace_back(test, rank);
      Result<std::unique_ptr<Program>> program = Program::build(plan, rank, world[rank]);
      EXPECT_TRUE(program.ok()) << program.status().message();
      programs_.push_back(std::move(*program));
      executions_.push_back(std::make_unique<Execution>(*programs_.back()));
      executions_.back()->start(binding(rank, piece_bytes));
    }
  }

  // All ranks in this thread, in a random order: what is blocked for ever is found at once.
  std::string run_in_turn(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<int> open;
    for (int rank = 0; rank < test_.ranks; ++rank) open.push_back(rank);
    while (!open.empty()) {
      std::shuffle(open.begin(), open.end(), random);
      bool progressed = false;
      for (size_t i = 0; i < open.size();) {
        const Advance state = executions_[open[i]]->advance();
        if (state == Advance::Failed) return executions_[open[i]]->status().message();
        progressed |= state != Advance::Blocked;
        if (state == Advance::Done) {
          open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
        } else {
          ++i;
        }
      }
      if (!progressed) return test_.name() + ": deadlock";
    }
    return difference();
  }

  // Each rank in a thread of its own, which sleeps while there is nothing to do.
  std::string run_in_threads(ShmWorld& world) {
    std::atomic<bool> failed{false};  // one that fails leaves the others waiting
    std::vector<std::thread> threads;
    for (int rank = 0; rank < test_.ranks; ++rank) {
      threads.emplace_back([this, rank, &world, &failed] {
        Execution& execution = *executions_[static_cast<size_t>(rank)];
        RankPage& page = world[rank].segment().rank_page(rank);
        Advance state = Advance::Blocked;
        const auto moves = [&] { return (state = execution.advance()) != Advance::Blocked; };
        while (state != Advance::Done && !failed.load()) {
          if (!moves()) sleep_on(page, moves);
          if (state == Advance::Failed) failed.store(true);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& execution : executions_) {
      if (!execution->status().ok()) return execution->status().message();
    }
    return difference();
  }

 private:
  Binding binding(int rank, size_t piece_bytes) {
    Binding binding;
    binding.input = buffers_[static_cast<size_t>(rank)].send();
    binding.output = buffers_[static_cast<size_t>(rank)].recv();
    binding.count = test_.count;
    binding.type = testing::type_of<T>();
    binding.op = test_.op;
    binding.piece_bytes = piece_bytes;
    binding.tag.signature.count = test_.count;
    binding.tag.base = base_hash(binding.tag.signature);
    binding.tag.hash = request_hash(binding.tag.base, 0);
    return binding;
  }

  std::string difference() const {
    for (const RankBuffers<T>& buffers : buffers_) {
      if (std::string found = buffers.difference(); !found.empty()) return found;
    }
    return "";
  }

  CollectiveCase test_;
  std::vector<RankBuffers<T>> buffers_;
  std::vector<std::unique_ptr<Program>> programs_;
  std::vector<std::unique_ptr<Execution>> executions_;
};

Plan plan_of(const BuiltIn& algorithm, const CollectiveCase& test) {
  const Topology topology = single_host(test.ranks);
  Result<Algorithm> built = build(algorithm.name, test.collective, topology, test.root);
  EXPECT_TRUE(built.ok()) << built.status().message();
  Result<Plan> plan = lower(*built, topology);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return std::move(*plan);
}

template <class Body>
void for_each_plan(int ranks, size_t count, const Body& body) {
  for (const BuiltIn& algorithm : built_ins()) {
    for (const Collective collective : kWithPlans) {
      if (!algorithm.makes(collective)) continue;
      CollectiveCase test{collective, ranks, count};
      test.root = ranks - 1;
      const Plan plan = plan_of(algorithm, test);
      SCOPED_TRACE(std::string(algorithm.name) + ", " + test.name());
      body(test, plan);
    }
  }
}

bool has_in_place_form(Collective collective) { return collective != Collective::AllToAll; }

class BuiltInExecution : public ::testing::TestWithParam<int> {};

// Whatever the algorithm, the order in which ranks run, the slots, the size of pieces and the place of buffers, every
// rank ends with what the collective promises, and nobody waits for ever.
TEST_P(BuiltInExecution, GivesTheReferencesResult) {
  const int ranks = GetParam();
  for (const int slots : {2, kMaxSlots}) {
    ShmWorld world(geometry_of(ranks, slots, kSlotBytes));
    for (const size_t count : {1, 7, 300}) {
      for_each_plan(ranks, count, [&](CollectiveCase test, const Plan& plan) {
        for (const bool in_place : {false, true}) {
          if (in_place && !has_in_place_form(test.collective)) continue;
          test.in_place = in_place;
          EXPECT_EQ(Request<int32_t>(test, plan, world, 64).run_in_turn(count + ranks), "");
          EXPECT_EQ(Request<double>(test, plan, world, kSlotBytes).run_in_turn(count), "");
        }
      });
    }
  }
}

// The same where large pieces are passed by reference to the user's buffers, or share one copy in a slot.
TEST_P(BuiltInExecution, GivesTheReferencesResultForLargePieces) {
  const int ranks = GetParam();
  for (const bool references : {false, true}) {
    for (const int slots : {2, kMaxSlots}) {
      ShmWorld world(geometry_of(ranks, slots, kSlotBytes), {.same_process = references});
      for_each_plan(ranks, 4001, [&](CollectiveCase test, const Plan& plan) {
        for (const bool in_place : {false, true}) {
          if (in_place && !has_in_place_form(test.collective)) continue;
          test.in_place = in_place;
          test.op = RedOp::Max;
          EXPECT_EQ(Request<int32_t>(test, plan, world, references ? 4400 : 2200).run_in_turn(slots), "");
        }
      });
    }
  }
}

// The same with a thread for each rank, request after request over the same connections.
TEST_P(BuiltInExecution, GivesTheReferencesResultInThreads) {
  const int ranks = GetParam();
  ShmWorld copying(geometry_of(ranks, 3, kSlotBytes));
  ShmWorld referring(geometry_of(ranks, 3, kSlotBytes), {.same_process = true});
  for_each_plan(ranks, 3000, [&](CollectiveCase test, const Plan& plan) {
    EXPECT_EQ(Request<float>(test, plan, copying, 1000).run_in_threads(copying), "");
    test.in_place = has_in_place_form(test.collective);
    EXPECT_EQ(Request<float>(test, plan, referring, 4500).run_in_threads(referring), "");
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, BuiltInExecution, ::testing::Values(1, 2, 3, 5, 8));

}  // namespace
}  // namespace theseus
