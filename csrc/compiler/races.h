// Races: accesses to a place, one of them a write, that TBs, dependencies and messages leave unordered. The number of
// slots orders nothing, as a transport may have more of them.
//
// Input, Output and the Scratch of LoopOrder::SubPipelines are other memory in each micro-batch, so the accesses of one
// micro-batch show every race on them. Scratch under LoopOrder::MicroBatches is shared by all: there two micro-batches
// in a row do, for if each use comes after the uses that it conflicts with one micro-batch before, then also after
// those of all before (an instruction comes after itself of the micro-batch before).
//
// Where a plan is rendezvous_safe, any Send may pass a reference, which its receiver reads later. Its TB goes on
// meanwhile; only who depends on the Send, or hears from its receiver, knows that it is over.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/plan_graph.h"
#include "compiler/verify.h"
#include "compiler/verify_run.h"

namespace theseus {

// Two accesses, of which `after` came later in the run.
struct Conflict {
  Event before;
  Event after;
  Place place;            // as `after` names it
  bool overwrites;        // `after` writes
  bool next_micro_batch;  // `after` is of the micro-batch after that of `before`
  bool in_place;          // only one name of the place is Output: they meet in place alone
  bool by_reference;      // `before` is a Send that may pass a reference
};

// `run` is complete.
std::optional<Refusal> check_races(const PlanGraph& graph, const Run& run, const VerifyOptions& options);

}  // namespace theseus
