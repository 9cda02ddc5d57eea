// The schedules of one collective that may be usable in an epoch, arranged for select().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "policy/schedule_policy.h"
#include "policy/selector.h"

namespace theseus::policy {

class Candidates {
 public:
  // `replaces`: by schedule id, as in a snapshot. `fixed`: by attribute id, those that do not move in this epoch.
  // `policies` outlive this, and stay as they are.
  void assign(const std::vector<const SchedulePolicy*>& policies, const std::vector<int32_t>& replaces,
              const std::vector<bool>& fixed);
  // `errors` grows by one for each candidate whose policy failed.
  SelectedSchedule select(const Fields& fields, AttributeValues& values, uint64_t& errors);
  bool empty() const { return candidates_.empty(); }

 private:
  // What the fields of a request must be. Those who ask alike share one.
  struct Gate {
    double lowest_bytes;
    double highest_bytes;
    uint32_t names;   // a bit for each dtype that passes, and from kOpBit on for each op
    int32_t root;     // -1: any
    uint32_t others;  // ranges of further fields, in others_
    uint32_t others_end;
  };
  static constexpr int kOpBit = 16;
  struct Candidate {
    uint32_t gate;
    int32_t usable;  // evaluator; -1: always
    int32_t score;   // evaluator; -1: `constant`
    double constant;
  };
  // An evaluator is a lane of one of these: its number, times kLanes, and the lane. Policies that compute the same
  // share one, and it runs at most once in a selection.
  struct Group {
    Lanes lanes;
    bool moves = false;  // with requests
    uint64_t selection = 0;
  };

  void add(const SchedulePolicy& policy, const std::vector<bool>& fixed);
  static bool asks_alike(const SchedulePolicy& a, const SchedulePolicy& b);
  void add_gate(const SchedulePolicy& policy);
  int32_t evaluator_of(const FoldedExpression& expression, const std::vector<bool>& fixed);
  int32_t add_evaluator(const FoldedExpression& expression, const std::vector<bool>& fixed);
  void link(const std::vector<const SchedulePolicy*>& policies, const std::vector<int32_t>& replaces);

  bool passes(const Gate& gate, const Fields& fields, uint32_t names) const;
  // NaN where it failed.
  double evaluate(int32_t evaluator, const Fields& fields, AttributeValues& values);
  void consider(size_t index, const Fields& fields, AttributeValues& values, uint64_t& errors);
  uint32_t break_tie();

  // Those whose scores must be computed come first; then falling constant scores. Where that says nothing, those who
  // ask alike stand together.
  std::vector<Candidate> candidates_;
  size_t computed_ = 0;  // how many come first
  // By candidate
  std::vector<uint32_t> ids_;
  std::vector<int32_t> replaced_;  // the nearest candidate that it replaces through others; -1: none
  std::vector<uint64_t> beaten_;   // the selection in which another of the top was found to replace it
  std::vector<Gate> gates_;
  std::vector<Range> others_;
  std::vector<Group> groups_;
  // While it is assigned
  std::unordered_map<std::string_view, int32_t> evaluator_by_key_;
  std::unordered_map<std::string_view, size_t> group_by_shape_;  // the last one

  // Of the selection under way
  uint64_t selection_ = 0;
  std::vector<uint32_t> top_;  // candidates of the highest score so far
  double highest_ = 0;
  bool has_moved_ = false;
};

}  // namespace theseus::policy
