// Endogenous attributes of one communicator: what hooks make of installed values. No clocks; integers count.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "context/log.h"

namespace theseus {

// The values that policies read, by attribute id.
class Hooks {
 public:
  // At each agreement, changed or not: installs the snapshot's values and steps every hook once. `request`: the one
  // that the context is installed at; `time_us`: as agreed. True where a value is not what it was.
  bool install(const Snapshot& snapshot, uint64_t request, uint64_t time_us);
  // Values of an attribute for `request` (only Hook::Requests looks at it).
  const std::vector<double>& values(uint32_t attribute, uint64_t request);
  // Whether values change from one request to the next, so that a selection may not be remembered.
  static bool moves_with_requests(Hook hook) { return hook == Hook::Requests; }
  // Digest of all hook state: equal on all ranks.
  uint64_t digest() const;

 private:
  struct State {
    Hook hook = Hook::Exogenous;
    double initial = 0;
    uint64_t since_request = 0;
    uint64_t since_us = 0;
    uint64_t count = 0;
    bool has_changed = false;
    uint64_t changed_us = 0;
    std::vector<double> values;
  };
  void step(State& state, const Attribute& attribute, uint64_t time_us);

  std::map<uint32_t, State> states_;
};

}  // namespace theseus
