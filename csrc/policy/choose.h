// The default choice of an algorithm: a small cost model over what all ranks know alike, so that all choose alike.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "compiler/registry.h"
#include "policy/forced.h"
#include "schedule/topology.h"

namespace theseus {

struct RequestShape {
  Collective collective = Collective::AllReduce;
  uint64_t bytes = 0;  // of the whole data space: AllGather: ranks * count elements; AllToAll: what one rank sends
  TopologySummary topology;
};

struct Candidate {
  std::string algorithm;
  bool usable = false;
  double score = 0;  // predicted seconds; meaningless where not usable
  std::string reason;
};

struct Choice {
  std::string algorithm;              // a name that build() takes
  std::string reason;                 // one sentence
  std::vector<Candidate> candidates;  // in the order of the registry; only those made for the collective
};

// What the model assumes. One rank's costs inside a host, one host's costs between hosts.
struct CostConstants {
  double shm_step = 0.5e-6;      // seconds until a neighbour sees what a rank has written
  double shm_message = 0.05e-6;  // a rank's work per message
  double shm_byte = 3e-11;       // a rank's work per byte copied or reduced
  double net_step = 30e-6;
  double net_message = 5e-6;
  double net_byte = 1e-9;    // per byte and rail
  double net_incast = 0.05;  // share of a NIC's time lost where several hosts send to it at once: not all keep pace
};
inline constexpr CostConstants kCosts{};

// The cheapest usable algorithm; ties go to the one that comes first in the registry. Always finds one for a collective
// that has plans: where `forced` leaves none, it is set aside, and the reason says so.
Choice choose(const RequestShape& request, const Forced& forced, const CostConstants& costs = kCosts);

}  // namespace theseus
