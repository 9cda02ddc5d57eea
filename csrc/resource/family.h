// Numbers for ResourceRequest: families and tags of one communicator.
#pragma once

#include <cstdint>
#include <vector>

#include "context/log.h"

namespace theseus {

// The schedule at the root of the chain of replacements, through removed ones too. `replaces`: Snapshot::replaces.
inline uint32_t family_of(const std::vector<int32_t>& replaces, uint32_t schedule) {
  // A schedule names only earlier ones, so that this ends.
  while (schedule < replaces.size() && replaces[schedule] >= 0) schedule = static_cast<uint32_t>(replaces[schedule]);
  return schedule;
}

// A schedule of the log as a family or tag: for each root it is another plan. `root`: 0 for collectives without one.
inline uint64_t resource_number(uint32_t schedule, int root) {
  return static_cast<uint64_t>(schedule) << 32 | static_cast<uint32_t>(root);
}
// The schedule again; for unloading it with all its roots.
inline uint32_t schedule_of(uint64_t number) { return static_cast<uint32_t>(number >> 32 & 0x7fffffff); }

// Plans that are no schedules of the log (predefined ones, loaded ones), numbered by their communicator.
inline uint64_t predefined_number(uint64_t plan) { return uint64_t{1} << 63 | plan; }
inline bool is_predefined(uint64_t number) { return number >> 63 != 0; }

}  // namespace theseus
