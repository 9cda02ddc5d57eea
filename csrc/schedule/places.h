// Where the chunks of an algorithm lie in the buffers of each rank: the table at the head of algorithm.h, as functions.
#pragma once

#include "base/types.h"
#include "schedule/algorithm.h"
#include "schedule/plan.h"

namespace theseus {

// The data space of a collective, cut into chunks. `chunks_per_block` is Plan::chunks_per_block.
struct ChunkSpace {
  Collective collective = Collective::AllReduce;
  int ranks = 1;
  int root = 0;
  int chunks_per_block = 1;

  // Number of chunks of the whole space.
  int chunks() const;
  // The place of `chunk` in `rank`'s Input / Output; {None, 0} where the rank has none.
  Place input(int rank, int chunk) const;
  Place output(int rank, int chunk) const;
  // The inverse: which chunk lies at `place` (Input or Output) of `rank`.
  int chunk_at(int rank, Place place) const;
  // The one rank that `chunk` comes from; -1 where all contribute (reducing collectives).
  int owner(int chunk) const;
  // The one rank whose output `chunk` is part of; -1 where all ranks' is.
  int target(int chunk) const;
  // True where the finished chunk holds `rank`'s contribution.
  bool contributes(int rank, int chunk) const;
};

ChunkSpace space_of(const Plan& plan);
// Fails with InvalidArgument where the collective has no plans (AllToAllV, SendRecv, Barrier), the root is no rank, or
// `chunks` cannot be cut as the collective demands, or are more than 2^26.
Result<ChunkSpace> space_of(const Algorithm& algorithm);

bool has_plans(Collective collective);
bool is_rooted(Collective collective);
bool is_reducing(Collective collective);

}  // namespace theseus
