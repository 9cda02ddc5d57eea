// Whole plans, run over shared memory and held against the reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "compiler/lower.h"
#include "compiler/registry.h"
#include "executor/execution.h"
#include "shm_world.h"
#include "unit/collectives.h"

namespace theseus::testing {

inline constexpr Collective kWithPlans[] = {Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter,
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
    binding.type = type_of<T>();
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

inline Plan plan_of(const BuiltIn& algorithm, const CollectiveCase& test) {
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

}  // namespace theseus::testing
