// The built-in algorithms. Each function returns transfers for any number of ranks; with one rank there are none.
//
// Most are written once, as the way in which one owner's chunk spreads to all ranks, and used three times: as it is
// (AllGather, Broadcast, Scatter), backwards with reductions (ReduceScatter, Reduce, Gather), and backwards then
// forwards (AllReduce).
#pragma once

#include <string>

#include "base/result.h"
#include "schedule/algorithm.h"
#include "schedule/topology.h"

namespace theseus {

// AllReduce of small messages: every rank sends all it has to every other, and folds what arrives.
Algorithm one_shot(int ranks);

// Every chunk goes straight from its owner to all who need it. AllReduce: one chunk a rank, which its owner folds and
// hands out. AllToAll between hosts is striped over rails. Every collective that has plans.
Algorithm direct(Collective collective, const Topology& topology, int root);

// A ring per rail through all ranks, host by host; Broadcast and Reduce: a chain, which micro-batches fill.
// AllReduce, AllGather, ReduceScatter, Broadcast, Reduce.
Algorithm ring(Collective collective, const Topology& topology, int root);

// Distance-doubling exchanges. AllReduce: whole buffers, log2(ranks) steps; ranks beyond the largest power of two hand
// their data to a partner first and get the result last. AllGather, ReduceScatter: any number of ranks directly.
Algorithm recursive_doubling(Collective collective, const Topology& topology);

// AllReduce as recursive halving (reduce-scatter), then doubling (all-gather).
Algorithm halving_doubling(const Topology& topology);

// Binomial tree, hosts kept together. Broadcast, Reduce, AllReduce (to rank 0 and back).
Algorithm tree(Collective collective, const Topology& topology, int root);

// Rail-wise: ranks of a host share the work, ranks of equal local index meet over their rails, and every rail carries
// the same bytes in both directions. AllReduce, AllGather, ReduceScatter, Broadcast, Reduce. On one host, or with one
// rank a host, the stages that have nobody to talk to vanish. Fails with InvalidArgument where hosts have unequal
// numbers of ranks.
Result<Algorithm> hierarchical(Collective collective, const Topology& topology, int root);

// The hierarchical mesh of ResCCL's appendix A: a full mesh inside each host, a ring through the ranks of equal local
// index of all hosts. AllReduce, AllGather, ReduceScatter. `root` is ignored. InvalidArgument where hosts have unequal
// numbers of ranks.
Result<Algorithm> hierarchical_mesh(Collective collective, const Topology& topology, int root);

// AllToAll in ranks - 1 rounds of disjoint pairs: with rank XOR round where that is a rank, else (rank + round).
Algorithm pairwise(const Topology& topology);

}  // namespace theseus
