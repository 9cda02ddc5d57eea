#include "policy/selector.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "policy/candidates.h"
#include "policy/schedule_policy.h"

namespace theseus {

namespace {

using policy::Candidates;
using policy::SchedulePolicy;

// Values for one request, each asked for once.
class RequestValues : public AttributeValues {
 public:
  explicit RequestValues(Hooks& hooks) : hooks_(hooks) {}

  void start(uint64_t request_id) {
    ++round_;
    request_id_ = request_id;
  }
  std::span<const double> values(uint32_t attribute) override {
    if (attribute >= known_.size()) known_.resize(attribute + 1);
    Known& known = known_[attribute];
    if (known.round != round_) known = {round_, hooks_.values(attribute, request_id_)};
    return known.values;
  }

 private:
  struct Known {
    uint64_t round = 0;
    std::span<const double> values;
  };
  Hooks& hooks_;
  uint64_t request_id_ = 0;
  uint64_t round_ = 0;
  std::vector<Known> known_;
};

}  // namespace

struct Selector::Impl {
  explicit Impl(Hooks& given) : values(given) {}

  bool update(const Snapshot& snapshot);
  // By attribute id: which of those that do not move with requests have other values now.
  std::vector<bool> take_values(const std::vector<Attribute>& attributes);

  // The id that a schedule replaces, or -1.
  int32_t replaced_by(uint32_t id) const { return id < replaces.size() ? replaces[id] : -1; }

  RequestValues values;
  uint64_t log_id = 0;
  std::vector<bool> fixed;                // by attribute id: does not move with requests
  std::vector<std::vector<double>> seen;  // values of those that are fixed, as folded
  std::map<uint32_t, SchedulePolicy> policies;
  std::vector<int32_t> replaces;
  std::array<Candidates, kCollectives> candidates;
  uint64_t errors = 0;
};

std::vector<bool> Selector::Impl::take_values(const std::vector<Attribute>& attributes) {
  values.start(0);
  std::vector<bool> changed;
  for (const Attribute& attribute : attributes) {
    const size_t size = std::max<size_t>(fixed.size(), attribute.id + size_t{1});
    fixed.resize(size, false);
    seen.resize(size);
    changed.resize(size, false);
    fixed[attribute.id] = !Hooks::moves_with_requests(attribute.definition.hook);
    if (!fixed[attribute.id]) continue;
    const std::span<const double> now = values.values(attribute.id);
    std::vector<double>& before = seen[attribute.id];
    changed[attribute.id] = !std::equal(now.begin(), now.end(), before.begin(), before.end());
    if (changed[attribute.id]) before.assign(now.begin(), now.end());
  }
  return changed;
}

bool Selector::Impl::update(const Snapshot& snapshot) {
  std::array<bool, kCollectives> is_stale{};
  if (snapshot.log_id != log_id) {
    fixed.clear();
    seen.clear();
    policies.clear();
    is_stale.fill(true);
  }
  log_id = snapshot.log_id;
  const size_t attributes_before = fixed.size();
  const std::vector<bool> changed = take_values(snapshot.attributes);
  const bool has_more_attributes = fixed.size() != attributes_before;

  const auto refold = [&](SchedulePolicy& policy) {
    policy.fold(values, fixed);
    errors += policy.has_failed() ? 1 : 0;
    is_stale[static_cast<size_t>(policy.collective())] = true;
  };
  // Both by ascending id; an id is never given to another schedule.
  auto known = policies.begin();
  for (const Schedule& schedule : snapshot.schedules) {
    while (known != policies.end() && known->first < schedule.id) {
      is_stale[static_cast<size_t>(known->second.collective())] = true;
      known = policies.erase(known);
    }
    if (known == policies.end() || known->first != schedule.id) {
      known = policies.emplace_hint(known, schedule.id, SchedulePolicy(schedule, snapshot.attributes));
      refold(known->second);
    } else if ((has_more_attributes && known->second.rebind(snapshot.attributes)) || known->second.reads(changed)) {
      refold(known->second);
    }
    ++known;
  }
  for (; known != policies.end(); known = policies.erase(known)) {
    is_stale[static_cast<size_t>(known->second.collective())] = true;
  }
  replaces = snapshot.replaces;

  bool is_any_stale = false;
  for (int i = 0; i < kCollectives; ++i) {
    if (!is_stale[static_cast<size_t>(i)]) continue;
    is_any_stale = true;
    std::vector<const SchedulePolicy*> found;
    for (const auto& [id, policy] : policies) {
      if (static_cast<int>(policy.collective()) == i) found.push_back(&policy);
    }
    candidates[static_cast<size_t>(i)].assign(found, replaces, fixed);
  }
  return is_any_stale;
}

Selector::Selector(const Snapshot& snapshot, Hooks& hooks) : impl_(std::make_unique<Impl>(hooks)) {
  impl_->update(snapshot);
}
Selector::~Selector() = default;

bool Selector::update(const Snapshot& snapshot) { return impl_->update(snapshot); }

SelectedSchedule Selector::select(const PolicyRequest& request, uint64_t request_id) {
  Candidates& candidates = impl_->candidates[static_cast<size_t>(request.collective)];
  if (candidates.empty()) return {};
  impl_->values.start(request_id);
  return candidates.select(policy::fields_of(request), impl_->values, impl_->errors);
}

bool Selector::empty(Collective collective) const { return impl_->candidates[static_cast<size_t>(collective)].empty(); }

uint64_t Selector::errors() const { return impl_->errors; }

std::vector<ScheduleVerdict> Selector::explain(const PolicyRequest& request, uint64_t request_id) {
  impl_->values.start(request_id);
  std::vector<ScheduleVerdict> verdicts;
  for (const auto& [id, policy] : impl_->policies) {
    if (policy.collective() != request.collective) continue;
    const auto score = policy.evaluate(request, impl_->values);
    verdicts.push_back({id, policy.name(), score.ok(), score.ok() ? *score : 0, score.status().message()});
  }
  const ScheduleVerdict* best = nullptr;
  for (const ScheduleVerdict& each : verdicts) {
    if (each.usable && (best == nullptr || each.score > best->score)) best = &each;
  }
  if (best == nullptr) return verdicts;
  const double highest = best->score;
  const std::string leader = best->name;
  std::map<uint32_t, ScheduleVerdict*> top;
  for (ScheduleVerdict& each : verdicts) {
    if (each.usable && each.score == highest) top.emplace(each.schedule, &each);
    if (each.usable && each.score < highest) each.reason = "its score is below that of " + leader;
  }
  for (const auto& [id, verdict] : top) {
    for (int32_t above = impl_->replaced_by(id); above >= 0; above = impl_->replaced_by(static_cast<uint32_t>(above))) {
      const auto beaten = top.find(static_cast<uint32_t>(above));
      if (beaten != top.end() && beaten->second->reason.empty()) {
        beaten->second->reason = verdict->name + " has the same score and replaces it";
      }
    }
  }
  const ScheduleVerdict* winner = nullptr;
  for (const auto& [id, verdict] : top) {
    if (!verdict->reason.empty()) continue;
    verdict->reason = winner == nullptr
                          ? (top.size() > 1 ? "selected: highest score, and it stands first among its equals"
                                            : "selected: highest score")
                          : winner->name + " has the same score and is older";
    if (winner == nullptr) winner = verdict;
  }
  return verdicts;
}

}  // namespace theseus
