// Order that comes about through other ranks: their answers to what was sent.
//
// For one TB, what each event knows of it (the last of its instructions that came before) follows in one pass over the
// history. So the conflicts are grouped by TB, and a pass serves a few TBs at once. No clock of all TBs is ever held.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/counterexample.h"
#include "compiler/plan_graph.h"
#include "compiler/races.h"
#include "compiler/verify_run.h"

namespace theseus {

enum class Verdict : uint8_t {
  Ordered,
  Unordered,
  Pending,  // ordered, but a reference may still be in use
};

class AcrossRanks {
 public:
  AcrossRanks(const PlanGraph& graph, const Run& run, uint64_t work_limit);

  struct Found {
    Verdict verdict;  // Ordered: all of them are
    size_t conflict;
  };
  // The first of `conflicts` that is a race. Nothing, where that takes more than the work limit.
  std::optional<Found> first_race(const std::vector<Conflict>& conflicts) const;
  const History& history() const { return history_; }

 private:
  static constexpr size_t kColumns = 8;

  // What is asked about a TB: the last of its instructions that was issued, or the last that was known to be finished.
  struct Column {
    int32_t program;
    bool finished;
    auto operator<=>(const Column&) const = default;
  };
  struct Rows;

  bool judge(const Conflict* begin, const Conflict* end, std::vector<Verdict>& verdicts, uint64_t& work) const;
  std::vector<Column> columns_for(const Conflict* begin, const Conflict* end) const;
  void fill(Rows& rows, const Column* begin, const Column* end, bool next_micro_batch) const;
  void fill_event(Rows& rows, Event event) const;
  void fill_next_event(Rows& rows, Event event) const;

  const PlanGraph& graph_;
  History history_;
  uint64_t work_limit_;
};

}  // namespace theseus
