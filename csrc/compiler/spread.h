// Ways in which chunks spread from their owner, and how to run them backwards. Helpers of the built-in algorithms.
#pragma once

#include <vector>

#include "schedule/algorithm.h"
#include "schedule/topology.h"

namespace theseus {

using Transfers = std::vector<Transfer>;

// Number of steps: one more than the largest.
int steps_of(const Transfers& transfers);

// What a spread moves away from the owner moves towards it, and is reduced: sources and destinations swap, the last
// step comes first.
Transfers backwards(const Transfers& spread, TransferOp op = TransferOp::Reduce);

// `second` after `first`.
Transfers then(Transfers first, Transfers second);

// Sorted by (step, chunk, src, dst), so that equal algorithms are equal lists.
void sort_transfers(Transfers& transfers);

// Ranks in an order that keeps hosts together, starting with `front` and its host.
std::vector<int> order_by_host(const Topology& topology, int front = 0);

// The smallest number of pieces such that `ranks_per_host` ranks with that many pieces each load all rails equally.
int pieces_per_rank(int ranks_per_host, int rails);

// `rail` between hosts; inside a host there is only one.
int16_t rail_between(const Topology& topology, int src, int dst, int rail);

}  // namespace theseus
