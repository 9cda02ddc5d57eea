// Selection: which schedule of the installed context a request runs (Theseus, "The design", 1).
//
//     usable schedules -> highest score -> among those, none that another of them replaces -> lowest id
//
// Made once a communicator and brought up to date at each agreement: constants folded, schedules indexed by collective.
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
  bool remembered = true;  // false: no equal request may reuse this, an attribute that moves with requests was read
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
  // `hooks` outlives the selector and has `snapshot` installed; both are used under one lock. Schedules whose policies
  // do not parse or bind are never usable. The snapshot may go.
  Selector(const Snapshot& snapshot, Hooks& hooks);
  ~Selector();

  // After hooks.install(), at each agreement, changed or not: values of hooks move there. Does again only what depends
  // on what moved. True: selections may differ from now on, so none that was remembered holds.
  bool update(const Snapshot& snapshot);

  SelectedSchedule select(const PolicyRequest& request, uint64_t request_id);
  // All schedules of the collective, by id; counts no errors.
  std::vector<ScheduleVerdict> explain(const PolicyRequest& request, uint64_t request_id);
  // No schedule of this collective can be usable before the next update: nothing to ask.
  bool empty(Collective collective) const;
  // Evaluations that failed so far; a policy that fails whatever the request counts when it is installed. One that is
  // not needed for the selection (a field or a score rules its schedule out) is not evaluated.
  uint64_t errors() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace theseus
