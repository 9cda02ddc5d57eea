// One rank's process in the simulation: what it has read and loaded, and its end of each communicator.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "context/digest.h"
#include "context/hooks.h"
#include "unit/context/simulation_job.h"

namespace theseus {

class SimulatedProcess;

// A digest without the position, for logs of which some were compacted.
inline uint64_t content_of(const Snapshot& snapshot) {
  Digest digest;
  for (const Attribute& attribute : snapshot.attributes) {
    digest.add(attribute.definition.name).add(attribute.version);
    for (const double value : attribute.values) digest.add(value);
  }
  for (const Schedule& schedule : snapshot.schedules) {
    digest.add(uint64_t{schedule.id}).add(schedule.definition.name);
  }
  return digest.value();
}

// One rank's end of one communicator.
class SimulatedMember : public Holdings {
 public:
  SimulatedMember(SimulatedProcess& process, int rank, const std::vector<int>& hosts, const AgreementRules& rules)
      : process_(process), machine(rank, hosts, *this, rules) {}

  Offer offer() override;
  Confirmation decode(const Offer& candidate) override;
  void decided(const Decision& decision) override {
    offered_ = {};
    if (decision.changed) queued_.push_back(std::move(*decoded_));
    decoded_.reset();
  }

  // Installs what is to be installed before `request`; counts contexts that changed. False: a position went back.
  bool install(uint64_t request, uint64_t& switches) {
    while (const std::unique_ptr<Decision> decision = machine.take(request)) {
      if (decision->changed) {
        if (queued_.front().position < installed.position) return false;
        installed = std::move(queued_.front());
        queued_.pop_front();
        ++switches;
      }
      hooks.install(installed, request, decision->candidate.time_us);
    }
    return true;
  }
  bool holds(uint32_t schedule, bool count_offers) const {
    const auto has = [schedule](const Snapshot& snapshot) {
      return std::any_of(snapshot.schedules.begin(), snapshot.schedules.end(),
                         [schedule](const Schedule& one) { return one.id == schedule; });
    };
    if ((count_offers && offered_.test(schedule)) || has(installed) || (decoded_ && has(*decoded_))) return true;
    if (std::any_of(queued_.begin(), queued_.end(), has)) return true;
    return std::any_of(unfinished.begin(), unfinished.end(),
                       [schedule](const auto& request) { return request.second == static_cast<int32_t>(schedule); });
  }
  // The schedule of a request, and a digest of all values that policies read for it.
  std::pair<int32_t, uint64_t> select(uint64_t request, bool local_input);
  size_t waiting() const { return queued_.size() + machine.undone() + unfinished.size(); }

 private:
  SimulatedProcess& process_;
  ScheduleSet offered_;
  std::optional<Snapshot> decoded_;
  std::deque<Snapshot> queued_;
  std::optional<uint64_t> first_read_;

 public:
  Hooks hooks;
  Snapshot installed;
  std::map<uint64_t, int32_t> unfinished;  // request -> schedule
  uint64_t next_request = 1;
  Agreement machine;
};

class SimulatedProcess {
 public:
  SimulatedProcess(SimulatedTime& time, Random& random, const SimulationRules& rules, const HostLog& host_log)
      : rules(rules), time_(time), random_(random), host_log_(host_log), skew_(random.below(5000)) {
    log_ = std::make_unique<ContextLog>(SimulatedJob::kLogId);
  }

  const ContextLog& log() const { return *log_; }
  uint64_t position() const { return log_->position() + refused_ + host_log_.offset; }
  uint64_t offset() const { return refused_ + host_log_.offset; }
  uint64_t clock_us() const { return time_.now() + skew_; }
  const ScheduleSet& loaded() const { return loaded_; }
  bool reread() const { return reread_; }
  uint32_t propose_k() { return static_cast<uint32_t>(random_.between(1, 20)); }

  // Some records further; then starts to load what is new and unloads what is gone.
  void read() {
    for (uint64_t i = random_.below(6); i > 0 && read_ < host_log_.records.size(); --i) {
      const Result<Record> record = decode_record(host_log_.records[read_++]);
      const Status applied = log_->apply(*record);
      // Agents refuse such records; where their log went wrong, ranks pass over them.
      if (!applied.ok()) ++refused_;
      if (applied.ok() && std::holds_alternative<ScheduleDefinition>(*record)) load_later(log_->schedules() - 1);
    }
    unload();
    forget();
  }
  bool has_read_all() const { return read_ == host_log_.records.size(); }
  // Its log is gone and read anew, from the start.
  void read_anew() {
    log_ = std::make_unique<ContextLog>(SimulatedJob::kLogId);
    read_ = refused_ = 0;
    reread_ = true;
  }

  std::map<size_t, std::unique_ptr<SimulatedMember>> members;  // by communicator
  uint64_t requests = 0;
  const SimulationRules& rules;
  bool offer_was_broken = false;

 private:
  void load_later(uint32_t id) {
    const uint64_t delay = random_.chance(0.1) ? random_.between(3000, 9000) : random_.between(10, 1500);
    time_.after(delay, [this, id] {
      if (!log_->removed(id, log_->position())) loaded_.set(id);
    });
  }
  void unload() {
    for (uint32_t id = 0; id < log_->schedules(); ++id) {
      if (!loaded_.test(id) || !log_->removed(id, log_->position())) continue;
      const bool held = std::any_of(members.begin(), members.end(), [this, id](const auto& member) {
        return member.second->holds(id, rules.pin_offers);
      });
      if (!held || !rules.guard_unloading) loaded_.set(id, false);
    }
  }
  void forget() {
    uint64_t passed = position();
    for (const auto& [communicator, member] : members) passed = std::min(passed, member->installed.position);
    if (!rules.keep_values) passed = position();
    if (passed > offset()) log_->forget_before(passed - offset());
  }

  SimulatedTime& time_;
  Random& random_;
  const HostLog& host_log_;
  const uint64_t skew_;
  std::unique_ptr<ContextLog> log_;
  uint64_t read_ = 0;
  uint64_t refused_ = 0;
  bool reread_ = false;
  ScheduleSet loaded_;
};

inline Offer SimulatedMember::offer() {
  Offer offer;
  offer.log_id = process_.log().id();
  offer.position = process_.position();
  offer.next_k = process_.propose_k();
  offer.time_us = process_.clock_us();
  for (uint32_t id = 0; id < process_.log().schedules(); ++id) {
    const bool counts = process_.loaded().test(id) || !process_.rules.bits_mean_loaded;
    if (counts && !process_.log().removed(id, process_.log().position())) offer.loaded.set(id);
  }
  offered_ = offer.loaded;
  return offer;
}

inline Confirmation SimulatedMember::decode(const Offer& candidate) {
  if (candidate.position < process_.offset()) return {0, 0, false, -1};
  Result<Snapshot> snapshot = process_.log().snapshot(candidate.position - process_.offset(), candidate.loaded);
  // Offered, and yet not there any more: what rules about pins and values are for.
  process_.offer_was_broken |= !snapshot.ok() && !process_.reread();
  if (!snapshot.ok()) return {0, 0, false, -1};
  snapshot->position = candidate.position;
  for (const Schedule& schedule : snapshot->schedules) {
    if (process_.loaded().test(schedule.id)) continue;
    process_.offer_was_broken |= !process_.reread();
    return {0, 0, false, -1};
  }
  if (!process_.rules.ids_when_applied) snapshot->digest = content_of(*snapshot);
  decoded_ = std::move(*snapshot);
  return {decoded_->digest, decoded_->digest, true, -1};
}

// A stand-in for policies that is as sensitive as any: usable and score hang on every bit of every value.
inline std::pair<int32_t, uint64_t> SimulatedMember::select(uint64_t request, bool local_input) {
  const SimulationRules& rules = process_.rules;
  if (local_input && !first_read_) first_read_ = request;
  Digest read;
  for (const Attribute& attribute : installed.attributes) {
    const Hook hook = attribute.definition.hook;
    const std::vector<double>* values = &hooks.values(attribute.id, request);
    if (!rules.copy_values && hook == Hook::Exogenous) {
      values = &process_.log().find_attribute(attribute.definition.name)->values;
    }
    for (const double value : *values) {
      double seen = value;
      if (hook == Hook::Requests && !rules.counters_start_installed) {
        seen = static_cast<double>(request - first_read_.value_or(request));
      }
      if (hook == Hook::Requests && !rules.counters_per_communicator) seen = static_cast<double>(process_.requests);
      read.add(seen);
    }
  }
  if (!rules.equal_inputs) read.add(uint64_t{local_input});
  std::vector<int32_t> top;
  uint64_t highest = 0;
  for (const Schedule& schedule : installed.schedules) {
    const uint64_t hash = Digest().add(read.value()).add(uint64_t{schedule.id}).value();
    const uint64_t score = hash / 4 % 3;
    if (hash % 4 == 0 || (!top.empty() && score < highest)) continue;
    if (score > highest) top.clear();
    highest = score;
    top.push_back(static_cast<int32_t>(schedule.id));
  }
  std::set<int32_t> replaced;
  for (const int32_t id : top) {
    for (int32_t at = installed.replaces[static_cast<size_t>(id)]; at >= 0;
         at = installed.replaces[static_cast<size_t>(at)]) {
      replaced.insert(at);
    }
  }
  for (const int32_t id : top) {
    if (!replaced.contains(id)) return {id, read.value()};
  }
  return {-1, read.value()};
}

}  // namespace theseus
