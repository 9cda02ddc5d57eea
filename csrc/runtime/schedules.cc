#include "runtime/schedules.h"

#include "base/log.h"
#include "compiler/compile.h"
#include "compiler/registry.h"
#include "runtime/job_log.h"
#include "runtime/outside_plan.h"
#include "runtime/worker.h"

namespace theseus {

Schedules::Schedules(int rank, Topology topology, int slots)
    : rank_(rank), topology_(std::move(topology)), slots_(slots) {}

void Schedules::learn() {
  {
    const std::lock_guard lock(mutex_);
    if (learning_) return;
    learning_ = true;
  }
  Worker::preparer().post([self = shared_from_this()] {
    std::vector<Schedule> due;
    {
      const std::lock_guard lock(self->mutex_);
      self->learning_ = false;  // whoever asks from now on is served by a further round
      due = JobLog::instance().schedules_from(self->known_);
      self->known_ += static_cast<uint32_t>(due.size());
      for (auto& [id, schedule] : self->awaited_) due.push_back(std::move(schedule));
      self->awaited_.clear();
    }
    for (const Schedule& schedule : due) self->make_ready(schedule);
  });
}

void Schedules::learn_awaited() {
  {
    const std::lock_guard lock(mutex_);
    if (awaited_.empty()) return;
  }
  learn();
}

void Schedules::make_ready(const Schedule& schedule) {
  Result<LoadedSchedule> made = make(schedule);
  const std::lock_guard lock(mutex_);
  if (made.ok()) {
    loaded_.emplace(schedule.id, std::make_shared<const LoadedSchedule>(std::move(*made)));
    loaded_set_.set(schedule.id);
  } else if (made.status().code() == Code::SystemError) {
    awaited_.emplace(schedule.id, schedule);
  } else {
    refused_.emplace(schedule.id, made.status().message());
    THESEUS_INFO(kLogTuning, "schedule '%s' is not for this communicator: %s", schedule.definition.name.c_str(),
                 made.status().message().c_str());
  }
}

// SystemError: not now, perhaps later.
Result<LoadedSchedule> Schedules::make(const Schedule& schedule) const {
  const ScheduleDefinition& definition = schedule.definition;
  LoadedSchedule loaded;
  loaded.id = schedule.id;
  loaded.name = definition.name;
  loaded.algorithm = definition.algorithm;
  loaded.collective = definition.collective;
  loaded.root = definition.root;
  if (definition.algorithm.empty()) {
    THESEUS_TRY(take_plan(schedule, loaded));
    return loaded;
  }
  const int root = definition.root < 0 ? 0 : definition.root;
  Result<Algorithm> algorithm = build(definition.algorithm, definition.collective, topology_, root);
  if (!algorithm.ok()) return algorithm.status();
  CompileOptions options;
  options.scheduling = Scheduling::PerConnection;
  Result<Plan> plan = compile(*algorithm, topology_, options, rank_);
  if (!plan.ok()) return plan.status();
  loaded.plan = std::move(*plan);
  return loaded;
}

Status Schedules::take_plan(const Schedule& schedule, LoadedSchedule& loaded) const {
  const ScheduleDefinition& definition = schedule.definition;
  Result<std::string> body = JobLog::instance().plan_body(definition.plan_hash, definition.plan_bytes);
  if (!body.ok()) return body.status();
  Result<Plan> plan = parse_plan_of_rank(*body, rank_);
  if (!plan.ok()) return plan.status();
  const int ranks = static_cast<int>(topology_.host_of_rank.size());
  if (plan->ranks != ranks || plan->rank_plans.size() != 1) {
    return Status::argument("its plan is for " + std::to_string(plan->ranks) + " ranks, not " + std::to_string(ranks));
  }
  if (plan->collective != definition.collective) return Status::argument("its plan is for another collective");
  Result<PlanProperties> properties = prove(*body, slots_);
  if (!properties.ok()) return properties.status();
  // What a policy may choose has to run however the buffers of a rank lie: that is no rank's to know of another.
  const bool has_in_place = plan->collective != Collective::AllToAll;
  if (!properties->out_of_place || (has_in_place && !properties->in_place)) {
    return Status::argument("its plan is right in place only, or out of place only");
  }
  THESEUS_TRY(place_connections(plan->rank_plans.front(), topology_));
  loaded.root = plan->root;
  loaded.scales = properties->scales;
  loaded.any_count = properties->any_count;
  loaded.plan = std::move(*plan);
  return {};
}

ScheduleSet Schedules::loaded() const {
  const std::lock_guard lock(mutex_);
  return loaded_set_;
}

std::shared_ptr<const LoadedSchedule> Schedules::find(uint32_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = loaded_.find(id);
  return found == loaded_.end() ? nullptr : found->second;
}

void Schedules::drop(uint32_t id) {
  const std::lock_guard lock(mutex_);
  loaded_.erase(id);
  loaded_set_.set(id, false);
  awaited_.erase(id);
}

std::string Schedules::why_not(uint32_t id) const {
  const std::lock_guard lock(mutex_);
  if (const auto found = refused_.find(id); found != refused_.end()) return found->second;
  return awaited_.contains(id) ? "its plan has not arrived" : "";
}

}  // namespace theseus
