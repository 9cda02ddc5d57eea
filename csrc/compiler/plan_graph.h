// A whole plan with its two sides joined: TBs numbered through all ranks, and the connections between them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compiler/verify.h"
#include "schedule/plan.h"

namespace theseus {

// An instruction, numbered through all TBs of all ranks; in one micro-batch it happens once.
using Event = int32_t;

// A TB: its instructions are events [event, event + length).
struct Program {
  int32_t rank;
  int32_t tb;
  int32_t length;
  Event event;
  const Instruction* instructions;
};

// A connection with both its ends. Each end is used by one TB, or by none and then both are.
struct Link {
  int32_t sender = -1;  // programs
  int32_t receiver = -1;
  int32_t messages = 0;  // of a micro-batch, as the sender counts
  int32_t expected = 0;  // as the receiver does
};

class PlanGraph {
 public:
  // Checks all that can be checked without running the plan: indices, limits, ends of connections, sub-pipelines. A
  // refusal leaves the graph unusable, unless runnable(). `plan` must outlive the graph.
  std::optional<Refusal> build(const Plan& plan, const VerifyOptions& options);
  // Only the numbers of messages disagree: the plan can be run until that shows.
  bool runnable() const { return runnable_; }

  const Plan& plan() const { return *plan_; }
  const std::vector<Program>& programs() const { return programs_; }
  const Program& program(int32_t index) const { return programs_[static_cast<size_t>(index)]; }
  const std::vector<Link>& links() const { return links_; }
  const Link& link(int32_t index) const { return links_[static_cast<size_t>(index)]; }
  Event events() const { return events_; }
  // Programs of `rank`: [first_program(rank), first_program(rank + 1)).
  int32_t first_program(int rank) const { return first_program_[static_cast<size_t>(rank)]; }
  // The link of connection `id` of `rank`.
  int32_t link_of(int rank, int16_t id) const {
    return link_of_end_[static_cast<size_t>(first_end_[static_cast<size_t>(rank)] + id)];
  }

  const Instruction& instruction(int32_t program, int32_t step) const {
    return programs_[static_cast<size_t>(program)].instructions[step];
  }
  int32_t program_of(Event event) const;
  Occurrence occurrence(int32_t program, int32_t step, int32_t micro_batch = 0) const;
  // "rank 3, TB 2, step 5 (Recv, chunk Output[4])"
  std::string describe(int32_t program, int32_t step) const;
  // A refusal about that instruction, the chunk being that of `place`; `text` follows "plan 'ring': ".
  Refusal refuse(FaultKind kind, int32_t program, int32_t step, Place place, const std::string& text) const;

 private:
  std::optional<Refusal> check_parts(const VerifyOptions& options) const;
  std::optional<Refusal> check_size(const VerifyOptions& options) const;
  std::optional<Refusal> number_ends();
  std::optional<Refusal> take_ends();
  std::optional<Refusal> take_end(int32_t program, int32_t step, int16_t id, bool again);
  std::optional<Refusal> check_dependencies() const;
  std::optional<Refusal> check_counts() const;
  std::optional<Refusal> refuse_pair(int rank, int16_t id) const;

  const Plan* plan_ = nullptr;
  bool runnable_ = false;
  Event events_ = 0;
  std::vector<Program> programs_;
  std::vector<int32_t> first_program_;
  std::vector<int32_t> first_end_;  // of each rank, in link_of_end_
  std::vector<int32_t> link_of_end_;
  std::vector<Link> links_;
};

// "rank 1 to rank 2 on rail 0, channel 0"
std::string describe_link(const PlanGraph& graph, int32_t link);

// The links that an instruction of `rank` takes a message from, in the order of its operands.
template <class Visit>
void for_each_incoming(const PlanGraph& graph, int rank, const Instruction& instruction, Visit visit) {
  if (instruction.recv >= 0) visit(graph.link_of(rank, instruction.recv));
  for (const int16_t operand : instruction.fold) {
    if (operand != kLocalOperand) visit(graph.link_of(rank, operand));
  }
}

}  // namespace theseus
