#include <algorithm>
#include <string>

#include "compiler/cells.h"
#include "compiler/symbolic.h"

namespace theseus {
namespace {

// Answers "is `before` over when `after` begins?", first from what the rank itself knows, then along messages.
class HappensBefore {
 public:
  HappensBefore(const PlanGraph& graph, const std::vector<Event>& order, uint64_t work_limit)
      : graph_(graph), position_(order.size()), row_(order.size()), budget_(work_limit) {
    for (size_t i = 0; i < order.size(); ++i) position_[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
  }

  // False where the clocks would exceed the work limit.
  bool build_clocks(const std::vector<Event>& order) {
    const auto& programs = graph_.programs();
    std::vector<int32_t> width(static_cast<size_t>(graph_.plan().ranks), 0);
    std::vector<int32_t> first(static_cast<size_t>(graph_.plan().ranks), 0);
    for (size_t p = 0; p < programs.size(); ++p) {
      const auto rank = static_cast<size_t>(programs[p].rank);
      if (width[rank]++ == 0) first[rank] = static_cast<int32_t>(p);
    }
    uint64_t size = 0;
    for (const Event event : order) {
      row_[static_cast<size_t>(event)] = size;
      size += static_cast<uint64_t>(width[rank_of(event)]);
    }
    if (!spend(size)) return false;
    first_program_ = std::move(first);
    clock_.assign(size, -1);
    for (const Event event : order) {
      const auto columns = static_cast<size_t>(width[rank_of(event)]);
      int32_t* mine = clock_.data() + row_[static_cast<size_t>(event)];
      graph_.for_each_local_predecessor(event, [&](Event before) {
        const int32_t* theirs = clock_.data() + row_[static_cast<size_t>(before)];
        for (size_t c = 0; c < columns; ++c) mine[c] = std::max(mine[c], theirs[c]);
        int32_t& seen = mine[column_of(before)];
        seen = std::max(seen, before);
      });
    }
    return true;
  }

  bool holds(Event before, Event after) {
    if (clock_[row_[static_cast<size_t>(after)] + column_of(before)] >= before) return true;
    return reaches(before, after);
  }
  bool exhausted() const { return exhausted_; }

 private:
  size_t rank_of(Event event) const { return static_cast<size_t>(graph_.site(graph_.site_of(event)).rank); }
  size_t column_of(Event event) const {
    return static_cast<size_t>(graph_.site(graph_.site_of(event)).program - first_program_[rank_of(event)]);
  }
  bool spend(uint64_t work) {
    exhausted_ = exhausted_ || work > budget_;
    if (!exhausted_) budget_ -= work;
    return !exhausted_;
  }

  // Backwards from `after`, never further back than `before`.
  bool reaches(Event before, Event after) {
    if (visited_.empty()) visited_.assign(position_.size(), 0);
    ++round_;
    stack_.assign(1, after);
    bool found = false;
    while (!stack_.empty() && !found) {
      const Event event = stack_.back();
      stack_.pop_back();
      const auto visit = [&](Event earlier) {
        const auto index = static_cast<size_t>(earlier);
        found = found || earlier == before;
        if (visited_[index] == round_ || position_[index] < position_[static_cast<size_t>(before)]) return;
        visited_[index] = round_;
        stack_.push_back(earlier);
      };
      graph_.for_each_local_predecessor(event, visit);
      graph_.for_each_sender(event, visit);
      if (!spend(1)) return true;
    }
    return found;
  }

  const PlanGraph& graph_;
  std::vector<int32_t> position_;
  std::vector<uint64_t> row_;   // of an event, in clock_
  std::vector<int32_t> clock_;  // per event and TB of its rank: the last event of that TB known to be over
  std::vector<int32_t> first_program_;
  std::vector<uint32_t> visited_;
  std::vector<Event> stack_;
  uint32_t round_ = 0;
  uint64_t budget_;
  bool exhausted_ = false;
};

class RaceChecker {
 public:
  RaceChecker(const PlanGraph& graph, const std::vector<Event>& order, bool in_place, uint64_t work_limit)
      : graph_(graph),
        order_(order),
        cells_(graph.plan(), graph.micro_batches(), in_place),
        in_place_(in_place),
        before_(graph, order, work_limit),
        history_(static_cast<size_t>(cells_.total())) {}

  Status run() {
    if (!before_.build_clocks(order_)) return too_large();
    for (const Event event : order_) {
      const Site& site = graph_.site(graph_.site_of(event));
      const Instruction& i = *site.instruction;
      const int micro_batch = graph_.micro_batch_of(event);
      const bool reads_destination = i.opcode == Opcode::Reduce;
      const int64_t source = i.src.buffer == Buffer::None ? -1 : cells_.cell(site.rank, micro_batch, i.src);
      const int64_t destination = i.dst.buffer == Buffer::None ? -1 : cells_.cell(site.rank, micro_batch, i.dst);
      if (source >= 0) THESEUS_TRY(read(event, source));
      if (reads_destination && destination != source) THESEUS_TRY(read(event, destination));
      const bool moves_nothing = i.opcode == Opcode::Copy && source == destination;
      if (destination >= 0 && !moves_nothing) THESEUS_TRY(write(event, destination));
    }
    return before_.exhausted() ? too_large() : Status();
  }

 private:
  struct History {
    Event writer = -1;
    std::vector<Event> readers;
  };

  Status read(Event event, int64_t cell) {
    History& history = history_[static_cast<size_t>(cell)];
    if (history.writer >= 0 && !before_.holds(history.writer, event)) return race(history.writer, event, "read");
    history.readers.push_back(event);
    return {};
  }

  Status write(Event event, int64_t cell) {
    History& history = history_[static_cast<size_t>(cell)];
    for (const Event reader : history.readers) {
      if (reader != event && !before_.holds(reader, event)) return race(reader, event, "overwritten");
    }
    if (history.writer >= 0 && !before_.holds(history.writer, event)) {
      return race(history.writer, event, "overwritten");
    }
    history.writer = event;
    history.readers.clear();
    return {};
  }

  Status race(Event first, Event second, const char* what) const {
    return Status::argument(
        "plan '" + graph_.plan().name + "'" + (in_place_ ? ", in place" : "") + ": " +
        graph_.describe(graph_.site_of(second)) + " of micro-batch " + std::to_string(graph_.micro_batch_of(second)) +
        " races with " + graph_.describe(graph_.site_of(first)) + " of micro-batch " +
        std::to_string(graph_.micro_batch_of(first)) + ": nothing orders them, and the chunk is " + what);
  }

  Status too_large() const {
    return Status::usage("plan '" + graph_.plan().name +
                         "': ordering its accesses takes more than the verifier's limit; raise work_limit");
  }

  const PlanGraph& graph_;
  const std::vector<Event>& order_;
  Cells cells_;
  bool in_place_;
  HappensBefore before_;
  std::vector<History> history_;
};

}  // namespace

Status check_races(const PlanGraph& graph, const std::vector<Event>& order, bool in_place, uint64_t work_limit) {
  return RaceChecker(graph, order, in_place, work_limit).run();
}

}  // namespace theseus
