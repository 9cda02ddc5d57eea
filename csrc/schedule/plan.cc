#include "schedule/plan.h"

#include "schedule/places.h"

namespace theseus {

BufferShape buffer_shape(Collective collective, int ranks, int root, int rank) {
  const bool at_root = rank == root;
  switch (collective) {
    case Collective::AllReduce: return {1, 1};
    case Collective::AllGather: return {1, ranks};
    case Collective::ReduceScatter: return {ranks, 1};
    case Collective::Broadcast: return {at_root ? 1 : 0, 1};
    case Collective::Reduce: return {1, at_root ? 1 : 0};
    case Collective::AllToAll: return {ranks, ranks};
    case Collective::Gather: return {1, at_root ? ranks : 0};
    case Collective::Scatter: return {at_root ? ranks : 0, 1};
    default: return {0, 0};
  }
}

Place in_place_twin(Collective collective, int ranks, int root, int rank, int chunks_per_block, Place place) {
  constexpr Place nowhere{Buffer::None, 0};
  if (collective == Collective::AllToAll || !has_plans(collective)) return nowhere;
  if (place.buffer != Buffer::Input && place.buffer != Buffer::Output) return nowhere;
  // In place, the two names of a cell are the two places of one chunk.
  const ChunkSpace space{collective, ranks, root, chunks_per_block};
  const int chunk = space.chunk_at(rank, place);
  return place.buffer == Buffer::Input ? space.output(rank, chunk) : space.input(rank, chunk);
}

}  // namespace theseus
