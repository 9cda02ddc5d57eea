// The schedules of the job log that one communicator can run: made ready in the background, before they are offered to
// an agreement, so that a switch never waits for a compiler.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "context/log.h"
#include "schedule/plan.h"
#include "schedule/topology.h"

namespace theseus {

// A schedule that this rank can run on this communicator. Immutable.
struct LoadedSchedule {
  uint32_t id = 0;
  std::string name;
  std::string algorithm;  // a built-in's name; empty: the plan came from outside
  Collective collective = Collective::AllReduce;
  int root = -1;          // -1: any
  bool scales = true;     // false: no reduction that scales inputs
  bool any_count = true;  // false: counts that do not divide run on padded copies
  Plan plan;              // this rank's part; that of root 0 where any root will do
};

class Schedules : public std::enable_shared_from_this<Schedules> {
 public:
  // `slots`: see dependable_slots().
  Schedules(int rank, Topology topology, int slots);

  // Makes all schedules of the job log ready that are new here, or whose plan had not arrived yet. Returns at once.
  void learn();
  // The same, where some plan had not arrived yet.
  void learn_awaited();
  ScheduleSet loaded() const;
  std::shared_ptr<const LoadedSchedule> find(uint32_t id) const;
  // Lets go of a schedule whose removal was agreed on.
  void drop(uint32_t id);
  // Why a schedule cannot run here; empty where it can, or has not been looked at.
  std::string why_not(uint32_t id) const;

 private:
  void make_ready(const Schedule& schedule);
  Result<LoadedSchedule> make(const Schedule& schedule) const;
  Status take_plan(const Schedule& schedule, LoadedSchedule& loaded) const;

  const int rank_;
  const Topology topology_;
  const int slots_;
  mutable std::mutex mutex_;
  bool learning_ = false;
  uint32_t known_ = 0;  // ids below have been looked at
  std::map<uint32_t, std::shared_ptr<const LoadedSchedule>> loaded_;
  ScheduleSet loaded_set_;
  std::map<uint32_t, std::string> refused_;
  std::map<uint32_t, Schedule> awaited_;  // whose plans have not arrived
};

}  // namespace theseus
