#include "compiler/races.h"

#include <algorithm>
#include <string>

#include "compiler/cells.h"
#include "compiler/counterexample.h"
#include "compiler/races_across_ranks.h"

namespace theseus {
namespace {

// What a rank can know by its own dependencies. A row holds, for each of its TBs, the last instruction known to be
// finished (-1: none). A TB's own instructions are not entered as it passes them: they are issued, but not finished
// where they sent a reference. An instruction that learns nothing shares the row of the one before it.
class RankClocks {
 public:
  RankClocks(const PlanGraph& graph, int rank)
      : graph_(graph), first_(graph.first_program(rank)), width_(graph.first_program(rank + 1) - first_) {
    const Event events = width_ > 0 ? end_event() - first_event() : 0;
    row_.resize(static_cast<size_t>(events));
    next_row_.resize(static_cast<size_t>(events));
    nothing_known_ = new_row(-1);
    latest_.assign(static_cast<size_t>(width_), nothing_known_);
  }

  // In the order of the run.
  void enter(int32_t program, int32_t step) {
    int32_t& latest = latest_[static_cast<size_t>(program - first_)];
    const Instruction& i = graph_.instruction(program, step);
    bool own = false;
    for (const Dependency& d : i.dependencies) {
      if (d.distance > 0 || at(latest, d.tb) >= d.step) continue;
      if (!own) latest = new_row(latest);
      own = true;
      merge(latest, row(d));
      raise(latest, d.tb, d.step);
    }
    row_[index(program, step)] = latest;
  }

  // The same for the next micro-batch, after all of this one was entered: what is known of this one then. A TB begins
  // with what it knew at its end.
  void enter_next(int32_t program, int32_t step) {
    int32_t& latest = latest_[static_cast<size_t>(program - first_)];
    const Instruction& i = graph_.instruction(program, step);
    bool own = false;
    for (const Dependency& d : i.dependencies) {
      const bool same = d.distance == 0;  // of the same micro-batch: then its TB is through with the one before
      const int32_t known = same ? graph_.program(first_ + d.tb).length - 1 : d.step;
      if (!same && at(latest, d.tb) >= known) continue;
      if (!own) latest = new_row(latest);
      own = true;
      merge(latest, same ? next_row_[index(first_ + d.tb, d.step)] : row(d));
      raise(latest, d.tb, known);
    }
    next_row_[index(program, step)] = latest;
  }

  // Whether `before` is over when `after` begins, as far as the rank itself knows. A reference needs to be finished.
  bool orders(const Conflict& c, int32_t before_program, int32_t after_program) const {
    if (!c.by_reference && before_program == after_program) return true;
    const auto after = static_cast<size_t>(c.after - first_event());
    const int32_t known = c.next_micro_batch ? next_row_[after] : row_[after];
    return at(known, before_program - first_) >= c.before - graph_.program(before_program).event;
  }

  // How much was done so far: a plan from outside may have any number of TBs and dependencies.
  uint64_t work() const { return work_; }

  Event first_event() const { return graph_.program(first_).event; }
  Event end_event() const {
    const Program& last = graph_.program(first_ + width_ - 1);
    return last.event + last.length;
  }

 private:
  size_t index(int32_t program, int32_t step) const {
    return static_cast<size_t>(graph_.program(program).event + step - first_event());
  }
  int32_t row(const Dependency& d) const { return row_[index(first_ + d.tb, d.step)]; }
  int32_t at(int32_t row, int32_t tb) const {
    return rows_[static_cast<size_t>(row) * static_cast<size_t>(width_) + static_cast<size_t>(tb)];
  }
  void raise(int32_t row, int32_t tb, int32_t step) {
    int32_t& known = rows_[static_cast<size_t>(row) * static_cast<size_t>(width_) + static_cast<size_t>(tb)];
    known = std::max(known, step);
  }
  // A copy of `like`, or one of nothing known.
  int32_t new_row(int32_t like) {
    const auto width = static_cast<size_t>(width_);
    const size_t begin = rows_.size();
    work_ += 1 + width / 2;
    rows_.resize(begin + width, -1);
    if (like >= 0) std::copy_n(rows_.data() + static_cast<size_t>(like) * width, width, rows_.data() + begin);
    return row_count_++;
  }
  void merge(int32_t into, int32_t from) {
    const auto width = static_cast<size_t>(width_);
    int32_t* mine = rows_.data() + static_cast<size_t>(into) * width;
    const int32_t* theirs = rows_.data() + static_cast<size_t>(from) * width;
    work_ += 1 + width / 16;
    for (size_t t = 0; t < width; ++t) mine[t] = std::max(mine[t], theirs[t]);
  }

  const PlanGraph& graph_;
  const int32_t first_;
  const int32_t width_;
  uint64_t work_ = 0;
  int32_t row_count_ = 0;
  int32_t nothing_known_ = 0;
  std::vector<int32_t> rows_;
  std::vector<int32_t> row_;       // by event of the rank
  std::vector<int32_t> next_row_;  // ... of the next micro-batch
  std::vector<int32_t> latest_;    // by TB
};

// Goes through the accesses of a rank in the order of the run, and notes those pairs that its clocks do not order.
//
// Calls out of place have fewer conflicts than calls in place, with one exception: a copy of a place onto itself, which
// moves nothing in place. So both ways are covered by one pass in place, and one out of place over the destinations of
// such copies.
class RankRaces {
 public:
  RankRaces(const PlanGraph& graph, const Cells& cells, const VerifyOptions& options, std::vector<Conflict>& open)
      : graph_(graph), cells_(cells), open_(open) {
    const Plan& plan = graph.plan();
    in_place_ = options.in_place && plan.collective != Collective::AllToAll;
    out_of_place_ = options.out_of_place;
    scaled_ = options.scaled_input && is_reducing(plan.collective);
    references_ = plan.rendezvous_safe || options.slots == 0;
    work_limit_ = options.work_limit;
  }

  // `programs`: the TBs of each issued instruction of `rank`, in order.
  void run(int rank, const std::vector<int32_t>& programs) {
    if (programs.empty()) return;
    rank_ = rank;
    first_program_ = graph_.first_program(rank);
    RankClocks clocks(graph_, rank);
    clocks_ = &clocks;
    pass_in_place_ = in_place_;
    begin_pass();
    walk(programs, [&](int32_t program, int32_t step) {
      clocks.enter(program, step);
      access(program, step);
    });
    const bool has_scratch = cells_.first_scratch(rank) < cells_.first(rank + 1);
    if (has_scratch && graph_.plan().loop == LoopOrder::MicroBatches) {
      next_micro_batch_ = true;
      walk(programs, [&](int32_t program, int32_t step) {
        clocks.enter_next(program, step);
        access(program, step);
      });
    }
    if (!pass_in_place_ || !out_of_place_ || self_copied_.empty()) return;
    pass_in_place_ = false;
    const std::vector<int64_t> copied = std::move(self_copied_);
    begin_pass();
    for (Accesses& history : history_) history.settled = true;
    for (const int64_t cell : copied) history_[static_cast<size_t>(cell)].settled = false;
    walk(programs, [&](int32_t program, int32_t step) { access(program, step); });
  }
  // It gave up.
  bool exhausted() const { return exhausted_; }

 private:
  static constexpr int32_t kNone = -1;
  struct Access {
    Event event = kNone;
    int32_t program = kNone;
    bool as_input = false;  // it says Input, so that it meets Output in place alone
    bool by_reference = false;
    bool only_scales = false;  // writes where the input is scaled, and then nobody passes references
  };
  struct Reader {
    Access access;
    int32_t next;
  };
  struct Accesses {
    Access writer;
    int32_t readers = kNone;  // since; a list in readers_
    bool settled = false;     // nothing to look at any more in this pass
  };

  void begin_pass() {
    history_.assign(static_cast<size_t>(cells_.first(rank_ + 1) - cells_.first(rank_)), {});
    readers_.clear();
    self_copied_.clear();
    next_micro_batch_ = false;
  }

  template <class Visit>
  void walk(const std::vector<int32_t>& programs, Visit visit) {
    next_step_.assign(static_cast<size_t>(graph_.first_program(rank_ + 1) - first_program_), 0);
    const uint64_t before = clocks_->work();
    for (const int32_t program : programs) {
      exhausted_ = exhausted_ || work_ + clocks_->work() - before > work_limit_;
      if (exhausted_) return;
      visit(program, next_step_[static_cast<size_t>(program - first_program_)]++);
    }
    work_ += clocks_->work() - before;
  }

  void access(int32_t program, int32_t step) {
    const Program& tb = graph_.program(program);
    const Instruction& i = tb.instructions[step];
    Access mine;
    mine.event = tb.event + step;
    mine.program = program;
    const int64_t source = cell_of(i.src);
    const int64_t destination = cell_of(i.dst);
    if (source >= 0) {
      Access reads = mine;
      reads.as_input = i.src.buffer == Buffer::Input;
      reads.by_reference = references_ && i.opcode == Opcode::Send;
      read(reads, source, i.src);
    }
    if (destination < 0) return;
    if (i.opcode == Opcode::Reduce && destination != source) read(mine, destination, i.dst);
    if (i.opcode == Opcode::Copy && source == destination) {
      if (i.src.buffer == Buffer::Input) self_copied_.push_back(destination);
      if (!scaled_ || i.src.buffer != Buffer::Input) return;  // it writes what is there
      mine.only_scales = true;
    }
    write(mine, destination, i.dst);
  }

  // Within the rank; -1: no place that a plan can write, or none of interest.
  int64_t cell_of(Place place) const {
    if (place.buffer == Buffer::None || (next_micro_batch_ && place.buffer != Buffer::Scratch)) return -1;
    int64_t cell = -1;
    if (place.buffer != Buffer::Input) {
      cell = cells_.cell(rank_, place);
    } else if (pass_in_place_) {
      cell = cells_.twin_of_input(rank_, place);
    }
    if (cell < 0) return -1;
    cell -= cells_.first(rank_);
    return history_[static_cast<size_t>(cell)].settled ? -1 : cell;
  }

  void read(const Access& mine, int64_t cell, Place place) {
    Accesses& history = history_[static_cast<size_t>(cell)];
    if (history.writer.event != kNone) check(history.writer, mine, place, false);
    if (next_micro_batch_) return;  // a read before the first write is the values' business
    readers_.push_back({mine, history.readers});
    history.readers = static_cast<int32_t>(readers_.size()) - 1;
  }

  void write(const Access& mine, int64_t cell, Place place) {
    Accesses& history = history_[static_cast<size_t>(cell)];
    for (int32_t r = history.readers; r != kNone; r = readers_[static_cast<size_t>(r)].next) {
      const Access& reader = readers_[static_cast<size_t>(r)].access;
      if (next_micro_batch_ || reader.event != mine.event) check(reader, mine, place, true);
    }
    if (history.writer.event != kNone) check(history.writer, mine, place, true);
    history.writer = mine;
    if (!mine.only_scales) history.readers = kNone;
    history.settled = next_micro_batch_;  // the rest was seen in this micro-batch
  }

  void check(const Access& before, const Access& after, Place place, bool overwrites) {
    ++work_;
    Conflict conflict;
    conflict.before = before.event;
    conflict.after = after.event;
    conflict.place = place;
    conflict.overwrites = overwrites;
    conflict.next_micro_batch = next_micro_batch_;
    conflict.in_place = pass_in_place_ && (before.as_input || after.as_input || !out_of_place_);
    conflict.by_reference = before.by_reference && !after.only_scales;
    if (!clocks_->orders(conflict, before.program, after.program)) open_.push_back(conflict);
  }

  const PlanGraph& graph_;
  const Cells& cells_;
  std::vector<Conflict>& open_;
  bool in_place_ = false;
  bool out_of_place_ = false;
  bool scaled_ = false;
  bool references_ = false;
  int rank_ = 0;
  int32_t first_program_ = 0;
  bool pass_in_place_ = false;
  bool next_micro_batch_ = false;
  uint64_t work_limit_ = 0;
  uint64_t work_ = 0;
  bool exhausted_ = false;
  const RankClocks* clocks_ = nullptr;
  std::vector<Accesses> history_;
  std::vector<Reader> readers_;
  std::vector<int64_t> self_copied_;  // destinations of copies that write nothing in place
  std::vector<int32_t> next_step_;
};

// The programs that issued an instruction, in order, rank by rank.
std::vector<std::vector<Segment>> by_rank(const PlanGraph& graph, const Run& run) {
  std::vector<std::vector<Segment>> segments(static_cast<size_t>(graph.plan().ranks));
  for (const Segment& s : run.segments) segments[static_cast<size_t>(graph.program(s.program).rank)].push_back(s);
  return segments;
}

Refusal refuse_race(const PlanGraph& graph, const Conflict& c, bool pending) {
  const int32_t before = graph.program_of(c.before);
  const int32_t after = graph.program_of(c.after);
  const int32_t before_step = c.before - graph.program(before).event;
  const int32_t after_step = c.after - graph.program(after).event;
  std::string text = (c.in_place ? "in place: " : "") + graph.describe(after, after_step);
  if (c.next_micro_batch) text += " of the next micro-batch";
  text += " races with " + graph.describe(before, before_step);
  if (pending) {
    text += ": that may pass a reference, which its receiver need not have read when the chunk is overwritten";
  } else {
    text += std::string(": nothing orders them, and the chunk is ") + (c.overwrites ? "overwritten" : "read");
  }
  Refusal refusal = graph.refuse(FaultKind::Race, after, after_step, c.place, text);
  refusal.in_place = c.in_place;
  refusal.micro_batches = c.next_micro_batch ? 2 : 1;
  if (pending) refusal.reference = graph.occurrence(before, before_step);
  return refusal;
}

Refusal too_large(const PlanGraph& graph, const std::string& how) {
  Refusal refusal;
  refusal.kind = FaultKind::TooLarge;
  refusal.text = "plan '" + graph.plan().name + "': ordering its accesses " + how +
                 "takes more than the verifier's limit; raise work_limit";
  return refusal;
}

}  // namespace

std::optional<Refusal> check_races(const PlanGraph& graph, const Run& run, const VerifyOptions& options) {
  const Cells cells(graph.plan());
  std::vector<Conflict> open;
  RankRaces races(graph, cells, options, open);
  const auto segments = by_rank(graph, run);
  std::vector<int32_t> programs;
  for (size_t rank = 0; rank < segments.size(); ++rank) {
    programs.clear();
    for (const Segment& s : segments[rank]) programs.insert(programs.end(), static_cast<size_t>(s.count), s.program);
    races.run(static_cast<int>(rank), programs);
    if (races.exhausted()) return too_large(graph, "");
  }
  if (open.empty()) return {};
  const AcrossRanks across(graph, run, options.work_limit);
  const auto found = across.first_race(open);
  if (!found) return too_large(graph, "through other ranks ");
  if (found->verdict == Verdict::Ordered) return {};
  const Conflict& race = open[found->conflict];
  Refusal refusal = refuse_race(graph, race, found->verdict == Verdict::Pending);
  show_race(graph, across.history(), race, options.slots, refusal);
  return refusal;
}

}  // namespace theseus
