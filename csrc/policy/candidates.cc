#include "policy/candidates.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace theseus::policy {

namespace {

// Where a schedule stands among the candidates.
auto place_of(const SchedulePolicy& policy) {
  const Guards& guards = policy.guards();
  const bool is_computed = policy.score().code != nullptr;
  return std::tuple(!is_computed, is_computed ? 0 : -policy.score().constant, guards.bytes.low, guards.bytes.high,
                    guards.dtypes, guards.ops, policy.root());
}

}  // namespace

void Candidates::assign(const std::vector<const SchedulePolicy*>& policies, const std::vector<int32_t>& replaces,
                        const std::vector<bool>& fixed) {
  std::vector<const SchedulePolicy*> usable;
  for (const SchedulePolicy* each : policies) {
    if (each->can_be_used()) usable.push_back(each);
  }
  std::stable_sort(usable.begin(), usable.end(),
                   [](const SchedulePolicy* a, const SchedulePolicy* b) { return place_of(*a) < place_of(*b); });
  candidates_.clear();
  ids_.clear();
  gates_.clear();
  others_.clear();
  groups_.clear();
  computed_ = 0;
  for (size_t i = 0; i < usable.size(); ++i) {
    if (i == 0 || !asks_alike(*usable[i - 1], *usable[i])) add_gate(*usable[i]);
    add(*usable[i], fixed);
  }
  evaluator_by_key_.clear();
  group_by_shape_.clear();
  link(usable, replaces);
  beaten_.assign(candidates_.size(), 0);
  selection_ = 0;
}

bool Candidates::asks_alike(const SchedulePolicy& a, const SchedulePolicy& b) {
  const Guards &one = a.guards(), &other = b.guards();
  return one.bytes == other.bytes && one.dtypes == other.dtypes && one.ops == other.ops && one.others == other.others &&
         a.root() == b.root();
}

void Candidates::add_gate(const SchedulePolicy& policy) {
  const Guards& guards = policy.guards();
  Gate gate{};
  gate.lowest_bytes = guards.bytes.low;
  gate.highest_bytes = guards.bytes.high;
  gate.names = (guards.dtypes & ((1u << kOpBit) - 1)) | guards.ops << kOpBit;
  gate.root = policy.root();
  gate.others = static_cast<uint32_t>(others_.size());
  others_.insert(others_.end(), guards.others.begin(), guards.others.end());
  gate.others_end = static_cast<uint32_t>(others_.size());
  gates_.push_back(gate);
}

void Candidates::add(const SchedulePolicy& policy, const std::vector<bool>& fixed) {
  Candidate candidate{};
  candidate.gate = static_cast<uint32_t>(gates_.size() - 1);
  candidate.usable = evaluator_of(policy.usable(), fixed);
  candidate.score = evaluator_of(policy.score(), fixed);
  candidate.constant = policy.score().constant;
  computed_ += candidate.score >= 0 ? 1 : 0;
  candidates_.push_back(candidate);
  ids_.push_back(policy.id());
}

int32_t Candidates::evaluator_of(const FoldedExpression& expression, const std::vector<bool>& fixed) {
  if (expression.code == nullptr) return -1;
  const auto [found, is_new] = evaluator_by_key_.try_emplace(expression.key.text, -1);
  if (is_new) found->second = add_evaluator(expression, fixed);
  return found->second;
}

// Beside those of the same shape where there is room, else first of a group.
int32_t Candidates::add_evaluator(const FoldedExpression& expression, const std::vector<bool>& fixed) {
  const std::string_view shape(expression.key.text.data(), expression.key.shape_bytes);
  const auto [found, is_new] = group_by_shape_.try_emplace(shape, groups_.size());
  if (!is_new && fits_lanes(*expression.code) && !groups_[found->second].lanes.is_full()) {
    Lanes& lanes = groups_[found->second].lanes;
    lanes.add(*expression.code);
    return static_cast<int32_t>(found->second * kLanes + lanes.size() - 1);
  }
  Group group{Lanes(expression.code)};
  for (const Instruction& each : expression.code->instructions) {
    if (each.op == Op::Attribute || each.op == Op::ArrayAttribute) {
      group.moves |= each.id() >= fixed.size() || !fixed[each.id()];
    }
  }
  found->second = groups_.size();
  groups_.push_back(std::move(group));
  return static_cast<int32_t>(found->second * kLanes);
}

// A schedule may name only earlier ids, so one pass finds for each id the nearest candidate above it.
void Candidates::link(const std::vector<const SchedulePolicy*>& policies, const std::vector<int32_t>& replaces) {
  std::vector<int32_t> candidate_of(replaces.size(), -1);  // by schedule id
  for (size_t i = 0; i < policies.size(); ++i) {
    if (policies[i]->id() < replaces.size()) candidate_of[policies[i]->id()] = static_cast<int32_t>(i);
  }
  std::vector<int32_t> nearest(replaces.size(), -1);  // by schedule id
  replaced_.assign(policies.size(), -1);
  for (size_t id = 0; id < replaces.size(); ++id) {
    const int32_t above = replaces[id];
    if (above >= 0 && static_cast<size_t>(above) < id) {
      const auto index = static_cast<size_t>(above);
      nearest[id] = candidate_of[index] >= 0 ? candidate_of[index] : nearest[index];
    }
    if (candidate_of[id] >= 0) replaced_[static_cast<size_t>(candidate_of[id])] = nearest[id];
  }
}

bool Candidates::passes(const Gate& gate, const Fields& fields, uint32_t names) const {
  const double bytes = fields[static_cast<size_t>(Field::Bytes)];
  if (bytes < gate.lowest_bytes || bytes > gate.highest_bytes) return false;
  if ((gate.names & names) != names) return false;
  if (gate.root >= 0 && gate.root != fields[static_cast<size_t>(Field::Root)]) return false;
  for (uint32_t i = gate.others; i < gate.others_end; ++i) {
    if (!others_[i].holds(fields[static_cast<size_t>(others_[i].field)])) return false;
  }
  return true;
}

inline double Candidates::evaluate(int32_t evaluator, const Fields& fields, AttributeValues& values) {
  Group& group = groups_[static_cast<size_t>(evaluator) / kLanes];
  const size_t lane = static_cast<size_t>(evaluator) % kLanes;
  if (group.selection != selection_) {
    group.selection = selection_;
    group.lanes.run(fields, values);
    has_moved_ |= group.moves;
  }
  return group.lanes.value(lane);
}

// A candidate that passes its gate.
inline void Candidates::consider(size_t index, const Fields& fields, AttributeValues& values, uint64_t& errors) {
  const Candidate& candidate = candidates_[index];
  if (candidate.usable >= 0) {
    const double usable = evaluate(candidate.usable, fields, values);
    if (usable != usable) ++errors;
    if (usable != usable || usable == 0) return;
  }
  double score = candidate.constant;
  if (candidate.score >= 0) {
    score = evaluate(candidate.score, fields, values);
    if (score != score) ++errors;
    if (score != score) return;
  }
  if (!top_.empty() && score < highest_) return;
  if (!top_.empty() && score > highest_) top_.clear();
  highest_ = score;
  top_.push_back(static_cast<uint32_t>(index));
}

uint32_t Candidates::break_tie() {
  if (top_.size() == 1) return ids_[top_[0]];
  for (const uint32_t index : top_) {
    // What is marked was walked from, upwards.
    for (int32_t above = replaced_[index]; above >= 0; above = replaced_[static_cast<size_t>(above)]) {
      uint64_t& mark = beaten_[static_cast<size_t>(above)];
      if (mark == selection_) break;
      mark = selection_;
    }
  }
  uint32_t lowest = UINT32_MAX;
  for (const uint32_t index : top_) {
    if (beaten_[index] != selection_) lowest = std::min(lowest, ids_[index]);
  }
  return lowest;
}

SelectedSchedule Candidates::select(const Fields& fields, AttributeValues& values, uint64_t& errors) {
  ++selection_;
  top_.clear();
  has_moved_ = false;
  const uint32_t names = 1u << static_cast<uint32_t>(fields[static_cast<size_t>(Field::DType)]) |
                         1u << (kOpBit + static_cast<uint32_t>(fields[static_cast<size_t>(Field::Op)]));
  uint32_t gate = UINT32_MAX;
  bool is_open = false;
  const size_t size = candidates_.size();
  for (size_t i = 0; i < size; ++i) {
    // From here on scores fall: nothing better comes.
    if (i >= computed_ && !top_.empty() && candidates_[i].constant < highest_) break;
    if (candidates_[i].gate != gate) {
      gate = candidates_[i].gate;
      is_open = passes(gates_[gate], fields, names);
    }
    if (is_open) consider(i, fields, values, errors);
  }
  SelectedSchedule selected;
  selected.remembered = !has_moved_;
  if (!top_.empty()) selected.schedule = static_cast<int32_t>(break_tie());
  return selected;
}

}  // namespace theseus::policy
