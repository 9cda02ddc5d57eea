// An algorithm's transfers, checked and grouped by chunk: every chunk is a small program of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "schedule/algorithm.h"
#include "schedule/places.h"
#include "schedule/topology.h"

namespace theseus {

struct ChunkedTransfers {
  ChunkSpace space;
  int rails = 1;
  // Sorted by (chunk, step, dst, src); rail resolved. Those of chunk c: [first[c], first[c + 1]).
  std::vector<Transfer> transfers;
  std::vector<int32_t> first;
  bool several_hosts = false;
  // The rest is known after classify().
  // Lockstep (at most one message per step on every connection), with chunks that are passed on, between hosts. On one
  // host there is nothing to gain: there a Send can pass a reference, which a fused instruction cannot.
  bool fusable = false;
  // No rank sends and receives the same chunk in the same step: then a Send may wait for its receiver (rendezvous).
  bool exchange_free = false;
};

// Fails with InvalidArgument, naming the transfer at fault.
Result<ChunkedTransfers> chunk_transfers(const Algorithm& algorithm, const Topology& topology);

// Finds out what lower() may do with them.
void classify(ChunkedTransfers& grouped);

// "transfer 3 -> 5 of chunk 7 at step 2"
std::string describe(const Transfer& transfer);

}  // namespace theseus
