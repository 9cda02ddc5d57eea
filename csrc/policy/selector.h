// Selection: which schedule of the installed context a request runs (Theseus, "The design", 1).
//
//     usable schedules -> highest score -> among those, none that another of them replaces -> lowest id
//
// Made once a context epoch: constants folded, schedules indexed by collective.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "context/hooks.h"
#include "policy/expression.h"

namespace theseus {

struct SelectedSchedule {
  int32_t schedule = -1;   // id; -1: none is usable, a predefined one runs
  bool remembered = true;  // false: no equal request may reuse this, an endogenous attribute was read
};

struct ScheduleVerdict {  // for `theseus explain`
  uint32_t schedule = 0;
  std::string name;
  bool usable = false;
  double score = 0;
  std::string reason;  // why not usable, or why it lost or won
};

class Selector {
 public:
  // `hooks` outlives the selector; both are used under one lock. Schedules whose policies do not parse or bind are
  // never usable.
  Selector(const Snapshot& snapshot, Hooks& hooks);
  ~Selector();

  SelectedSchedule select(const PolicyRequest& request, uint64_t request_id);
  std::vector<ScheduleVerdict> explain(const PolicyRequest& request, uint64_t request_id);
  // No schedule of this collective at all: nothing to ask.
  bool empty(Collective collective) const;
  uint64_t errors() const;  // evaluations that failed so far

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace theseus
