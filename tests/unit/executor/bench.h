// Plans written by hand, the ranks that run them, and what each has put in and got out.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "executor/execution.h"
#include "shm_world.h"

namespace theseus::testing {

inline constexpr Place kNone{};
inline constexpr Place kInput{Buffer::Input, 0};
inline constexpr Place kOutput{Buffer::Output, 0};
inline constexpr Place kScratch{Buffer::Scratch, 0};
inline constexpr size_t kSlotBytes = 64 << 10;

inline Instruction make(Opcode opcode, Place src, Place dst, int recv = -1, int send = -1) {
  Instruction instruction;
  instruction.opcode = opcode;
  instruction.src = src;
  instruction.dst = dst;
  instruction.recv = static_cast<int16_t>(recv);
  instruction.send = static_cast<int16_t>(send);
  return instruction;
}

inline Instruction after(Instruction instruction, int tb, int step, int distance = 0) {
  instruction.dependencies.push_back({static_cast<int16_t>(tb), static_cast<int16_t>(distance), step});
  return instruction;
}

inline SignatureTag tag_of(uint64_t count, uint32_t request = 1) {
  SignatureTag tag;
  tag.signature.count = count;
  tag.signature.type = DataType::Float32;
  tag.signature.request = request;
  tag.base = base_hash(tag.signature);
  tag.hash = request_hash(tag.base, request);
  return tag;
}

// A plan under construction, the ranks that run it, and what each has put in and got out.
class Bench {
 public:
  explicit Bench(int ranks, const ReferencePolicy& policy = {}, int slots = 2)
      : world(geometry_of(ranks, slots, kSlotBytes), policy), inputs(ranks), outputs(ranks) {
    plan.name = "by hand";
    plan.ranks = ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      plan.rank_plans.emplace_back();
      plan.rank_plans.back().rank = rank;
    }
  }

  // Index of a connection of `rank`.
  int to(int rank, int peer) { return connect(rank, peer, true); }
  int from(int rank, int peer) { return connect(rank, peer, false); }
  void block(int rank, std::vector<Instruction> instructions) {
    plan.rank_plans[rank].thread_blocks.push_back({std::move(instructions)});
  }

  // Element i of rank r is (r + 1) * 1000 + i.
  void start(size_t count, size_t piece_bytes = kSlotBytes, const float* scalar = nullptr) {
    for (int rank = 0; rank < plan.ranks; ++rank) {
      inputs[rank].resize(count);
      for (size_t i = 0; i < count; ++i) inputs[rank][i] = static_cast<float>((rank + 1) * 1000 + static_cast<int>(i));
      outputs[rank].assign(count, -1);
      restart(rank, count, piece_bytes, scalar, tag_of(count));
    }
  }
  void restart(int rank, size_t count, size_t piece_bytes, const float* scalar, const SignatureTag& tag) {
    if (executions.empty()) build();
    Binding binding;
    binding.input = inputs[rank].data();
    binding.output = outputs[rank].data();
    binding.count = count;
    binding.piece_bytes = piece_bytes;
    binding.scalar = scalar;
    binding.tag = tag;
    executions[rank]->start(binding);
  }

  // Advances ranks in turn until nothing moves; the last rank's state, or Failed if any failed.
  std::vector<Advance> run() {
    std::vector<Advance> states(executions.size(), Advance::Blocked);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < executions.size(); ++rank) {
        if (states[rank] == Advance::Done || states[rank] == Advance::Failed) continue;
        states[rank] = executions[rank]->advance();
        moved |= states[rank] != Advance::Blocked;
      }
    }
    return states;
  }
  void run_to_end() {
    for (const Advance state : run()) ASSERT_EQ(state, Advance::Done);
  }

  Plan plan;
  ShmWorld world;
  std::vector<std::vector<float>> inputs, outputs;
  std::vector<std::unique_ptr<Program>> programs;
  std::vector<std::unique_ptr<Execution>> executions;

 private:
  int connect(int rank, int peer, bool outgoing) {
    std::vector<Connection>& connections = plan.rank_plans[rank].connections;
    connections.push_back({peer, outgoing});
    return static_cast<int>(connections.size()) - 1;
  }
  void build() {
    for (int rank = 0; rank < plan.ranks; ++rank) {
      Result<std::unique_ptr<Program>> program = Program::build(plan, rank, world[rank]);
      ASSERT_TRUE(program.ok()) << program.status().message();
      programs.push_back(std::move(*program));
      executions.push_back(std::make_unique<Execution>(*programs.back()));
    }
  }
};

}  // namespace theseus::testing
