// Proves a plan, whole, before anything runs it.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "schedule/plan.h"

namespace theseus {

struct VerifyOptions {
  int slots = 8;          // messages that a connection holds; 0: rendezvous
  int micro_batches = 3;  // 3 show every way in which one can meet the next
  bool in_place = true;
  bool out_of_place = true;
  // Every rank that ends with a reduced chunk has reduced it in the same order, so that all have the same bits.
  bool equal_bits = true;
  uint64_t work_limit = uint64_t{1} << 28;  // instructions, edges and lookups, before it gives up with an error
};

// Executes all ranks symbolically. Ok means: indices are in range and both ends of each connection agree; the plan ends
// with `slots` slots (and with none, where it claims to be rendezvous_safe); no two accesses to a place race, in place
// or out of place, as ordered by TBs, dependencies and messages alone; nothing is read before it is written or after it
// was overwritten; every chunk of every output holds each rank's contribution exactly once. InvalidArgument: why not,
// naming rank, TB, step and chunk. InvalidUsage: the plan is too large for the work limit.
Status verify(const Plan& whole, const VerifyOptions& options = {});

}  // namespace theseus
