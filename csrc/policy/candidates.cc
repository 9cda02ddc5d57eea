#include "policy/candidates.h"

#include <algorithm>

namespace theseus::policy {

void Candidates::assign(const std::vector<const SchedulePolicy*>& policies, const std::vector<int32_t>& replaces,
                        const std::vector<bool>& fixed) {
  std::vector<const SchedulePolicy*> usable;
  for (const SchedulePolicy* each : policies) {
    if (each->can_be_used()) usable.push_back(each);
  }
  std::stable_sort(usable.begin(), usable.end(), [](const SchedulePolicy* a, const SchedulePolicy* b) {
    const bool is_computed = a->score().code != nullptr, is_other_computed = b->score().code != nullptr;
    if (is_computed != is_other_computed) return is_computed;
    return !is_computed && a->score().constant > b->score().constant;
  });
  candidates_.clear();
  ids_.clear();
  others_.clear();
  evaluators_.clear();
  computed_ = 0;
  for (const SchedulePolicy* each : usable) add(*each, fixed);
  evaluator_by_key_.clear();
  link(usable, replaces);
  beaten_.assign(candidates_.size(), 0);
  selection_ = 0;
}

void Candidates::add(const SchedulePolicy& policy, const std::vector<bool>& fixed) {
  const Guards& guards = policy.guards();
  Candidate candidate{};
  candidate.lowest_bytes = guards.bytes.low;
  candidate.highest_bytes = guards.bytes.high;
  candidate.names = (guards.dtypes & ((1u << kOpBit) - 1)) | guards.ops << kOpBit;
  candidate.root = policy.root();
  candidate.usable = evaluator_of(policy.usable(), fixed);
  candidate.score = evaluator_of(policy.score(), fixed);
  candidate.constant = policy.score().constant;
  candidate.others = static_cast<uint32_t>(others_.size());
  others_.insert(others_.end(), guards.others.begin(), guards.others.end());
  candidate.others_end = static_cast<uint32_t>(others_.size());
  computed_ += candidate.score >= 0 ? 1 : 0;
  candidates_.push_back(candidate);
  ids_.push_back(policy.id());
}

int32_t Candidates::evaluator_of(const FoldedExpression& expression, const std::vector<bool>& fixed) {
  if (expression.code == nullptr) return -1;
  const auto [found, is_new] = evaluator_by_key_.try_emplace(expression.key, static_cast<int32_t>(evaluators_.size()));
  if (is_new) {
    Evaluator evaluator{expression.code, false, 0, {}};
    for (const Instruction& each : expression.code->instructions) {
      if (each.op == Op::Attribute || each.op == Op::ArrayAttribute) {
        evaluator.moves |= each.id() >= fixed.size() || !fixed[each.id()];
      }
    }
    evaluators_.push_back(std::move(evaluator));
  }
  return found->second;
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

inline bool Candidates::passes(const Candidate& candidate, const Fields& fields, uint32_t names) const {
  const double bytes = fields[static_cast<size_t>(Field::Bytes)];
  if (bytes < candidate.lowest_bytes || bytes > candidate.highest_bytes) return false;
  if ((candidate.names & names) != names) return false;
  if (candidate.root >= 0 && candidate.root != fields[static_cast<size_t>(Field::Root)]) return false;
  for (uint32_t i = candidate.others; i < candidate.others_end; ++i) {
    if (!others_[i].holds(fields[static_cast<size_t>(others_[i].field)])) return false;
  }
  return true;
}

inline const Outcome& Candidates::evaluate(int32_t evaluator, const Fields& fields, AttributeValues& values) {
  Evaluator& found = evaluators_[static_cast<size_t>(evaluator)];
  if (found.selection != selection_) {
    found.selection = selection_;
    found.outcome = run(*found.code, fields, values);
    has_moved_ |= found.moves;
  }
  return found.outcome;
}

// A candidate that passes its guards.
void Candidates::consider(size_t index, const Fields& fields, AttributeValues& values, uint64_t& errors) {
  const Candidate& candidate = candidates_[index];
  if (candidate.usable >= 0) {
    const Outcome& usable = evaluate(candidate.usable, fields, values);
    if (usable.fault != Fault::None) ++errors;
    if (usable.fault != Fault::None || usable.value == 0) return;
  }
  double score = candidate.constant;
  if (candidate.score >= 0) {
    const Outcome& computed = evaluate(candidate.score, fields, values);
    if (computed.fault != Fault::None) ++errors;
    if (computed.fault != Fault::None) return;
    score = computed.value;
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
  for (size_t i = 0; i < candidates_.size(); ++i) {
    // From here on scores fall: nothing better comes.
    if (i >= computed_ && !top_.empty() && candidates_[i].constant < highest_) break;
    if (passes(candidates_[i], fields, names)) consider(i, fields, values, errors);
  }
  SelectedSchedule selected;
  selected.remembered = !has_moved_;
  if (!top_.empty()) selected.schedule = static_cast<int32_t>(break_tie());
  return selected;
}

}  // namespace theseus::policy
