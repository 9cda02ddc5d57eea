// A deterministic simulation of a job: agents, ranks, communicators, agreements, over a network that is late.
//
// The state machines are the ones that run in a job (context/); the world around them is modelled here. A run is a
// function of its seed. It ends with the first violation of what AGREEMENT's rules promise, or with none.
#pragma once

#include <cstdint>
#include <string>

#include "context/agreement.h"

namespace theseus {

// Each is needed: with any of them switched off some seed finds a violation.
struct SimulationRules {
  AgreementRules agreement;
  bool append_only = true;                // a host's log takes the next record only, and freezes on a different one
  bool ids_when_applied = true;           // false: a late host reads a compacted log and counts anew
  bool keep_values = true;                // values stay in the log until all communicators have passed them
  bool copy_values = true;                // false: policies read the log's newest values
  bool bits_mean_loaded = true;           // false: a schedule is offered as soon as it was read of
  bool guard_unloading = true;            // false: what is removed is unloaded at once
  bool pin_offers = true;                 // false: what was only offered may be unloaded
  bool fold_elements = true;              // false: a writer publishes the whole array as it sees it
  bool fresh_communicators = true;        // false: a new communicator takes over its process's endogenous attributes
  bool equal_inputs = true;               // false: policies read what differs between ranks
  bool counters_start_installed = true;   // false: a counter starts when it is read first
  bool counters_per_communicator = true;  // false: a counter of the process
};

struct SimulationResult {
  std::string violation;  // empty: none
  uint64_t requests = 0;  // by communicator and rank
  uint64_t agreements = 0;
  uint64_t switches = 0;  // contexts installed
  uint64_t messages = 0;
  uint64_t records = 0;
  bool killed = false;  // a rank was; what was asked after that failed
};

inline SimulationResult simulate(uint64_t seed, const SimulationRules& rules = {});

}  // namespace theseus
