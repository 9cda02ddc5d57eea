// From an algorithm to a plan: thread blocks, dependencies, scratch.
//
// Each end of a connection belongs to one thread block (TB), and both ends order its messages by (step, chunk). A TB
// holds one connection, except where one instruction needs several: a Fold owns all connections that it reduces, and a
// fused instruction (RecvCopySend, ...) owns one of each direction. Copies inside a rank have a TB of their own.
//
// Why the result cannot deadlock. Order all instructions by (micro-batch, step, chunk, send before receive). Program
// order, dependencies, the way of a message and the return of its slot all go up in that order, whatever the slots
// >= 1. Fused instructions break the last of these, so they are used only in lockstep algorithms: where every
// connection carries at most one message per step and a fused send follows its receive by exactly one step; there the
// order (micro-batch, step of the receive, chunk) holds with 2 slots or more.
#pragma once

#include "base/result.h"
#include "schedule/algorithm.h"
#include "schedule/plan.h"
#include "schedule/topology.h"

namespace theseus {

inline constexpr int kAllRanks = -1;

// Lowers the part of `rank`, or of all ranks. The result depends on the arguments only. Fails with InvalidArgument
// where the algorithm is malformed (a rank out of range, a chunk sent by a rank that does not hold it, two copies that
// arrive in one step, ...), naming the transfer. That the algorithm computes its collective is the verifier's business.
Result<Plan> lower(const Algorithm& algorithm, const Topology& topology, int rank = kAllRanks);

}  // namespace theseus
