#include "compiler/races_across_ranks.h"

#include <algorithm>

namespace theseus {

// A row an event, a column each TB that is asked about: the last instruction known, -1 for none. Of "issued" columns an
// event's row includes the event itself. Of `next` rows, the event is of the next micro-batch, the columns are not.
struct AcrossRanks::Rows {
  explicit Rows(const PlanGraph& graph)
      : issued_column(graph.programs().size(), -1), finished_column(graph.programs().size(), -1) {}

  int32_t* of(Event event) { return rows.data() + static_cast<size_t>(event) * kColumns; }
  int32_t* next_of(Event event) { return next.data() + static_cast<size_t>(event) * kColumns; }
  static void merge(int32_t* into, const int32_t* from) {
    for (size_t c = 0; c < kColumns; ++c) into[c] = std::max(into[c], from[c]);
  }
  void set_columns(const Column* begin, const Column* end, bool forget) {
    for (const Column* c = begin; c != end; ++c) {
      auto& column = c->finished ? finished_column : issued_column;
      column[static_cast<size_t>(c->program)] = forget ? -1 : static_cast<int8_t>(c - begin);
    }
  }

  std::vector<int32_t> rows;
  std::vector<int32_t> next;
  std::vector<int8_t> issued_column;  // by program; -1: not asked about
  std::vector<int8_t> finished_column;
};

AcrossRanks::AcrossRanks(const PlanGraph& graph, const Run& run, uint64_t work_limit)
    : graph_(graph), history_(graph, run), work_limit_(work_limit) {}

std::optional<AcrossRanks::Found> AcrossRanks::first_race(const std::vector<Conflict>& conflicts) const {
  uint64_t work = 0;
  std::vector<Verdict> verdicts;
  // Few at first: a plan without any order has a race among them.
  size_t count = 16;
  for (size_t begin = 0; begin < conflicts.size(); begin += count, count *= 64) {
    count = std::min(count, conflicts.size() - begin);
    const Conflict* first = conflicts.data() + begin;
    if (!judge(first, first + count, verdicts, work)) return {};
    for (size_t c = 0; c < count; ++c) {
      if (verdicts[c] != Verdict::Ordered) return Found{verdicts[c], begin + c};
    }
  }
  return Found{Verdict::Ordered, 0};
}

std::vector<AcrossRanks::Column> AcrossRanks::columns_for(const Conflict* begin, const Conflict* end) const {
  std::vector<Column> columns;
  for (const Conflict* c = begin; c != end; ++c) {
    columns.push_back({history_.program_of(c->before), false});
    if (!c->by_reference) continue;
    columns.push_back({history_.program_of(c->before), true});
    columns.push_back({history_.program_of(history_.receiver_of(c->before)), false});
  }
  std::sort(columns.begin(), columns.end());
  columns.erase(std::unique(columns.begin(), columns.end()), columns.end());
  return columns;
}

// False where that exceeds the work limit.
bool AcrossRanks::judge(const Conflict* begin, const Conflict* end, std::vector<Verdict>& verdicts,
                        uint64_t& work) const {
  const auto count = static_cast<size_t>(end - begin);
  std::vector<bool> issued(count), over(count);  // `before` was, when `after` began
  const bool next = std::any_of(begin, end, [](const Conflict& c) { return c.next_micro_batch; });
  const std::vector<Column> columns = columns_for(begin, end);
  Rows rows(graph_);
  for (size_t first = 0; first < columns.size(); first += kColumns) {
    work += static_cast<uint64_t>(graph_.events()) * (next ? 2 : 1);
    if (work > work_limit_) return false;
    const Column* from = columns.data() + first;
    const Column* to = columns.data() + std::min(columns.size(), first + kColumns);
    fill(rows, from, to, next);
    for (size_t i = 0; i < count; ++i) {
      const Conflict& c = begin[i];
      const int32_t* row = c.next_micro_batch ? rows.next_of(c.after) : rows.of(c.after);
      const int32_t program = history_.program_of(c.before);
      const int32_t step = history_.step_of(c.before);
      const auto knows = [&](const std::vector<int8_t>& column, int32_t of, int32_t at_least) {
        const int8_t known = column[static_cast<size_t>(of)];
        return known >= 0 && row[known] >= at_least;
      };
      issued[i] = issued[i] || program == history_.program_of(c.after) || knows(rows.issued_column, program, step);
      if (!c.by_reference) continue;
      const Event receiver = history_.receiver_of(c.before);
      over[i] = over[i] || knows(rows.finished_column, program, step) ||
                knows(rows.issued_column, history_.program_of(receiver), history_.step_of(receiver));
    }
    rows.set_columns(from, to, true);
  }
  verdicts.assign(count, Verdict::Unordered);
  for (size_t i = 0; i < count; ++i) {
    if (over[i] || (issued[i] && !begin[i].by_reference)) {
      verdicts[i] = Verdict::Ordered;
    } else if (issued[i]) {
      verdicts[i] = Verdict::Pending;
    }
  }
  return true;
}

void AcrossRanks::fill(Rows& rows, const Column* begin, const Column* end, bool next_micro_batch) const {
  const size_t size = static_cast<size_t>(graph_.events()) * kColumns;
  rows.set_columns(begin, end, false);
  rows.rows.resize(size);
  for (const Event event : history_.order()) fill_event(rows, event);
  if (!next_micro_batch) return;
  rows.next.resize(size);
  for (const Event event : history_.order()) fill_next_event(rows, event);
}

void AcrossRanks::fill_event(Rows& rows, Event event) const {
  const int32_t index = history_.program_of(event);
  const Program& program = graph_.program(index);
  int32_t* mine = rows.of(event);
  if (event > program.event) {
    std::copy_n(rows.of(event - 1), kColumns, mine);
  } else {
    std::fill_n(mine, kColumns, -1);
  }
  for (const Dependency& d : program.instructions[event - program.event].dependencies) {
    if (d.distance > 0) continue;
    Rows::merge(mine, rows.of(history_.event_of(program.rank, d)));
    const int8_t column = rows.finished_column[static_cast<size_t>(graph_.first_program(program.rank) + d.tb)];
    if (column >= 0) mine[column] = std::max(mine[column], d.step);
  }
  history_.for_each_sender(event, [&](Event sender) { Rows::merge(mine, rows.of(sender)); });
  if (const int8_t own = rows.issued_column[static_cast<size_t>(index)]; own >= 0) mine[own] = event - program.event;
}

void AcrossRanks::fill_next_event(Rows& rows, Event event) const {
  const int32_t index = history_.program_of(event);
  const Program& program = graph_.program(index);
  int32_t* mine = rows.next_of(event);
  std::copy_n(event > program.event ? rows.next_of(event - 1) : rows.of(program.event + program.length - 1), kColumns,
              mine);
  for (const Dependency& d : program.instructions[event - program.event].dependencies) {
    const Event on = history_.event_of(program.rank, d);
    Rows::merge(mine, d.distance > 0 ? rows.of(on) : rows.next_of(on));
    const int32_t tb = graph_.first_program(program.rank) + d.tb;
    const int8_t column = rows.finished_column[static_cast<size_t>(tb)];
    // One instruction of the next micro-batch: its TB is through with this one.
    const int32_t step = d.distance > 0 ? d.step : graph_.program(tb).length - 1;
    if (column >= 0) mine[column] = std::max(mine[column], step);
  }
  history_.for_each_sender(event, [&](Event sender) { Rows::merge(mine, rows.next_of(sender)); });
  if (const int8_t own = rows.issued_column[static_cast<size_t>(index)]; own >= 0) mine[own] = program.length - 1;
}

}  // namespace theseus
