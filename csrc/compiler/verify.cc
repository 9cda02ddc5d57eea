#include "compiler/verify.h"

#include <algorithm>
#include <string>
#include <utility>

#include "compiler/plan_graph.h"
#include "compiler/races.h"
#include "compiler/values.h"
#include "compiler/verify_run.h"

namespace theseus {
namespace {

class Verifier {
 public:
  Verifier(const Plan& plan, const VerifyOptions& options)
      : plan_(plan), options_(options), rendezvous_(options.slots == 0 || plan.rendezvous_safe) {}

  std::optional<Refusal> run() {
    if (auto refusal = check_options()) return refusal;
    if (auto refusal = graph_.build(plan_, options_)) {
      if (graph_.runnable()) show(*refusal, run_once(graph_, slots(), nullptr));
      return refusal;
    }
    const bool in_place_first = !options_.out_of_place;
    SymbolicMemory memory(graph_, options_, in_place_first, rendezvous_ ? 0 : options_.slots);
    run_ = run_once(graph_, rendezvous_ ? 0 : options_.slots, &memory);
    if (memory.fault() && memory.fault()->kind == FaultKind::Structure) return memory.fault();
    if (!run_.complete) return refuse_stuck();
    if (auto refusal = check_races(graph_, run_, options_)) return refusal;
    if (auto refusal = check_values(memory)) return refusal;
    if (in_place_first || !options_.in_place || !memory.differs_in_place()) return {};
    // In place some instruction reads something else. The same run again, that way.
    SymbolicMemory other(graph_, options_, true, rendezvous_ ? 0 : options_.slots);
    replay(other);
    return check_values(other);
  }

 private:
  int slots() const { return std::max(options_.slots, 1); }

  std::optional<Refusal> check_options() const {
    Refusal refusal;
    refusal.kind = FaultKind::Options;
    const bool any = options_.out_of_place || (options_.in_place && plan_.collective != Collective::AllToAll);
    if (options_.slots < 0) {
      refusal.text = "verify: the number of slots cannot be negative";
    } else if (options_.max_thread_blocks < 0 || options_.max_connections < 0) {
      refusal.text = "verify: limits cannot be negative; 0 means any number";
    } else if (!any) {
      refusal.text =
          "verify: neither in place nor out of place leaves nothing to prove (AllToAll has no in-place form)";
    } else {
      return {};
    }
    return refusal;
  }

  std::optional<Refusal> refuse_stuck() {
    if (!rendezvous_) return stuck(FaultKind::Deadlock, options_.slots);
    // Which is worse: not even with slots.
    if (options_.slots > 0) {
      Run with_slots = run_once(graph_, options_.slots, nullptr);
      if (!with_slots.complete) {
        run_ = std::move(with_slots);
        return stuck(FaultKind::Deadlock, options_.slots);
      }
    }
    return stuck(FaultKind::Rendezvous, 0);
  }

  Refusal stuck(FaultKind kind, int slots) const {
    const Program& program = graph_.program(run_.stuck);
    const int32_t step = std::min(run_.finished[static_cast<size_t>(run_.stuck)], program.length - 1);
    const Instruction& i = program.instructions[step];
    const std::string how =
        slots == 0 ? "deadlocks without slots: " : "deadlocks with " + std::to_string(slots) + " slots: ";
    Refusal refusal =
        graph_.refuse(kind, run_.stuck, step, i.dst.buffer != Buffer::None ? i.dst : i.src, how + run_.circle);
    refusal.interleaving = occurrences(graph_, run_);
    refusal.slots = slots;
    return refusal;
  }

  void show(Refusal& refusal, const Run& run) const {
    refusal.interleaving = occurrences(graph_, run);
    refusal.slots = slots();
  }

  std::optional<Refusal> check_values(SymbolicMemory& memory) {
    auto refusal = memory.finish(run_);
    if (refusal) show(*refusal, run_);
    return refusal;
  }

  void replay(SymbolicMemory& memory) const {
    std::vector<int32_t> next(graph_.programs().size(), 0);
    for (const Segment& segment : run_.segments) {
      int32_t& step = next[static_cast<size_t>(segment.program)];
      for (int32_t i = 0; i < segment.count; ++i) memory.execute(segment.program, step++);
    }
  }

  const Plan& plan_;
  const VerifyOptions& options_;
  const bool rendezvous_;
  PlanGraph graph_;
  Run run_;
};

}  // namespace

const char* name_of(FaultKind kind) {
  static constexpr const char* names[kFaultKinds] = {"options",    "structure", "limit", "deadlock",
                                                     "rendezvous", "race",      "value", "too_large"};
  return static_cast<int>(kind) < kFaultKinds ? names[static_cast<int>(kind)] : "unknown";
}

std::optional<Refusal> find_fault(const Plan& whole, const VerifyOptions& options) {
  return Verifier(whole, options).run();
}

Status verify(const Plan& whole, const VerifyOptions& options) {
  const auto refusal = find_fault(whole, options);
  if (!refusal) return {};
  return refusal->kind == FaultKind::TooLarge ? Status::usage(refusal->text) : Status::argument(refusal->text);
}

}  // namespace theseus
