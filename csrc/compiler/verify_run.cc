#include "compiler/verify_run.h"

#include <algorithm>
#include <limits>

#include "compiler/values.h"

namespace theseus {
namespace {

constexpr int32_t kNobody = -1;

class Runner {
 public:
  Runner(const PlanGraph& graph, int slots, SymbolicMemory* memory)
      : graph_(graph),
        slots_(slots),
        memory_(memory),
        issued_(graph.programs().size(), 0),
        finished_(graph.programs().size(), 0),
        first_waiter_(graph.programs().size(), kNobody),
        next_waiter_(graph.programs().size(), kNobody),
        waits_for_step_(graph.programs().size(), 0),
        soonest_(graph.programs().size(), std::numeric_limits<int32_t>::max()),
        queued_(graph.programs().size(), true),
        links_(graph.links().size()) {}

  Run run() {
    for (size_t p = 0; p < issued_.size(); ++p) queue_.push_back(static_cast<int32_t>(p));
    // Two stacks of TBs taken in turn: a queue without moving parts.
    while (!queue_.empty()) {
      now_.swap(queue_);
      queue_.clear();
      for (size_t i = 0; i < now_.size(); ++i) {
        if (i + kAhead < now_.size()) fetch(now_[i + kAhead]);
        queued_[static_cast<size_t>(now_[i])] = false;
        advance(now_[i]);
      }
    }
    return result();
  }

 private:
  struct LinkState {
    int32_t in_flight = 0;
    bool sender_waits = false;
    bool receiver_waits = false;
  };

  // Plans are larger than caches, and each TB is somewhere else.
  static constexpr size_t kAhead = 8;
  void fetch(int32_t program) const {
    const Program& ahead = graph_.program(program);
    const int32_t step = issued_[static_cast<size_t>(program)];
    if (step >= ahead.length) return;
    const auto* next = reinterpret_cast<const char*>(&ahead.instructions[step]);
    __builtin_prefetch(next);
    __builtin_prefetch(next + sizeof(Instruction) - 1);
  }

  void advance(int32_t program) {
    const Program& here = graph_.program(program);
    const auto p = static_cast<size_t>(program);
    const int32_t begin = issued_[p];
    while (issued_[p] < here.length && finished_[p] == issued_[p]) {
      const Instruction& i = here.instructions[issued_[p]];
      if (!ready(program, here, i)) break;
      issue(program, here, i);
    }
    if (issued_[p] > begin) segments_.push_back({program, issued_[p] - begin});
  }

  // Whether `i` can be issued; else its TB is woken when what it misses is there.
  bool ready(int32_t program, const Program& here, const Instruction& i) {
    for (const Dependency& d : i.dependencies) {
      if (d.distance > 0) continue;
      const int32_t on = graph_.first_program(here.rank) + d.tb;
      if (finished_[static_cast<size_t>(on)] > d.step) continue;
      wait_for(program, on, d.step);
      return false;
    }
    bool all_there = true;
    for_each_incoming(graph_, here.rank, i, [&](int32_t link) {
      LinkState& state = links_[static_cast<size_t>(link)];
      if (!all_there || state.in_flight > 0) return;
      state.receiver_waits = true;
      all_there = false;
    });
    if (!all_there) return false;
    if (i.send < 0 || slots_ == 0) return true;
    LinkState& state = links_[static_cast<size_t>(graph_.link_of(here.rank, i.send))];
    if (state.in_flight < slots_) return true;
    state.sender_waits = true;
    return false;
  }

  void wait_for(int32_t program, int32_t on, int32_t step) {
    next_waiter_[static_cast<size_t>(program)] = first_waiter_[static_cast<size_t>(on)];
    first_waiter_[static_cast<size_t>(on)] = program;
    waits_for_step_[static_cast<size_t>(program)] = step;
    soonest_[static_cast<size_t>(on)] = std::min(soonest_[static_cast<size_t>(on)], step);
  }

  void wake(int32_t program) {
    if (queued_[static_cast<size_t>(program)]) return;
    queued_[static_cast<size_t>(program)] = true;
    queue_.push_back(program);
  }

  void issue(int32_t program, const Program& here, const Instruction& i) {
    if (memory_ != nullptr) memory_->execute(program, issued_[static_cast<size_t>(program)]);
    for_each_incoming(graph_, here.rank, i, [&](int32_t link) {
      LinkState& state = links_[static_cast<size_t>(link)];
      --state.in_flight;
      if (!state.sender_waits) return;
      state.sender_waits = false;
      wake(graph_.link(link).sender);
    });
    if (i.send >= 0) {
      const int32_t link = graph_.link_of(here.rank, i.send);
      LinkState& state = links_[static_cast<size_t>(link)];
      ++state.in_flight;
      if (state.receiver_waits) {
        state.receiver_waits = false;
        wake(graph_.link(link).receiver);
      }
    }
    ++issued_[static_cast<size_t>(program)];
    if (slots_ > 0) {
      finish(program);
    } else if (i.send < 0) {
      finish_with_senders(program);
    }
  }

  void finish(int32_t program) {
    const auto p = static_cast<size_t>(program);
    const int32_t step = finished_[p]++;
    if (step < soonest_[p]) return;
    soonest_[p] = std::numeric_limits<int32_t>::max();
    int32_t waiter = first_waiter_[p];
    first_waiter_[p] = kNobody;
    while (waiter != kNobody) {
      const int32_t next = next_waiter_[static_cast<size_t>(waiter)];
      const int32_t wanted = waits_for_step_[static_cast<size_t>(waiter)];
      if (wanted <= step) {
        wake(waiter);
      } else {
        wait_for(waiter, program, wanted);
      }
      waiter = next;
    }
  }

  // Without slots: whoever sent to the instruction that `program` issued last is finished with it, and so on.
  void finish_with_senders(int32_t program) {
    std::vector<int32_t>& over = over_;
    over.assign(1, program);
    while (!over.empty()) {
      const int32_t p = over.back();
      over.pop_back();
      const Program& here = graph_.program(p);
      const Instruction& i = here.instructions[finished_[static_cast<size_t>(p)]];
      finish(p);
      if (p != program) wake(p);
      for_each_incoming(graph_, here.rank, i, [&](int32_t link) { over.push_back(graph_.link(link).sender); });
    }
  }

  Run result() {
    Run run;
    for (size_t p = 0; p < issued_.size(); ++p) {
      if (finished_[p] == graph_.program(static_cast<int32_t>(p)).length) continue;
      run.complete = false;
      if (run.stuck < 0) run.stuck = static_cast<int32_t>(p);
    }
    if (!run.complete) describe_circle(run);
    run.segments = std::move(segments_);
    run.finished = std::move(finished_);
    return run;
  }

  // The TB that a stuck one waits for; kNobody where that is through, so that nothing will come.
  int32_t blocker_of(int32_t program) const {
    const Program& here = graph_.program(program);
    const auto p = static_cast<size_t>(program);
    const Instruction& i = here.instructions[finished_[p]];
    int32_t blocker = kNobody;
    if (issued_[p] > finished_[p]) {
      blocker = graph_.link(graph_.link_of(here.rank, i.send)).receiver;
    } else {
      for (const Dependency& d : i.dependencies) {
        const int32_t on = graph_.first_program(here.rank) + d.tb;
        if (blocker == kNobody && d.distance == 0 && finished_[static_cast<size_t>(on)] <= d.step) blocker = on;
      }
      for_each_incoming(graph_, here.rank, i, [&](int32_t link) {
        if (blocker == kNobody && links_[static_cast<size_t>(link)].in_flight == 0) blocker = graph_.link(link).sender;
      });
      if (blocker == kNobody && i.send >= 0) blocker = graph_.link(graph_.link_of(here.rank, i.send)).receiver;
    }
    const bool through =
        blocker == kNobody || finished_[static_cast<size_t>(blocker)] == graph_.program(blocker).length;
    return through ? kNobody : blocker;
  }

  void describe_circle(Run& run) const {
    constexpr size_t kShown = 8;
    std::vector<int32_t> path;
    std::vector<int32_t> seen_at(issued_.size(), kNobody);
    int32_t program = run.stuck;
    while (program != kNobody && seen_at[static_cast<size_t>(program)] == kNobody) {
      seen_at[static_cast<size_t>(program)] = static_cast<int32_t>(path.size());
      path.push_back(program);
      program = blocker_of(program);
    }
    if (program != kNobody) path.erase(path.begin(), path.begin() + seen_at[static_cast<size_t>(program)]);
    run.stuck = path.front();
    for (size_t i = 0; i < path.size(); ++i) {
      if (i == kShown) {
        run.circle += " waits for ... and so on";
        return;
      }
      run.circle += (i > 0 ? " waits for " : "") + graph_.describe(path[i], finished_[static_cast<size_t>(path[i])]);
    }
    run.circle += program != kNobody ? " waits for the first of these" : " waits for what nobody does any more";
  }

  const PlanGraph& graph_;
  const int slots_;
  SymbolicMemory* memory_;
  std::vector<int32_t> issued_;        // by program: instructions begun
  std::vector<int32_t> finished_;      // ... and over; behind issued_ only where a send waits for its receiver
  std::vector<int32_t> first_waiter_;  // by program: a list of the programs that wait for a step of it
  std::vector<int32_t> next_waiter_;
  std::vector<int32_t> waits_for_step_;
  std::vector<int32_t> soonest_;  // by program: the first step that anybody waits for
  std::vector<bool> queued_;
  std::vector<LinkState> links_;
  std::vector<int32_t> queue_;
  std::vector<int32_t> now_;
  std::vector<int32_t> over_;
  std::vector<Segment> segments_;
};

}  // namespace

Run run_once(const PlanGraph& graph, int slots, SymbolicMemory* memory) { return Runner(graph, slots, memory).run(); }

std::vector<Occurrence> occurrences(const PlanGraph& graph, const Run& run) {
  std::vector<Occurrence> all;
  std::vector<int32_t> next(graph.programs().size(), 0);
  for (const Segment& segment : run.segments) {
    int32_t& step = next[static_cast<size_t>(segment.program)];
    for (int32_t i = 0; i < segment.count; ++i) all.push_back(graph.occurrence(segment.program, step++));
  }
  return all;
}

}  // namespace theseus
