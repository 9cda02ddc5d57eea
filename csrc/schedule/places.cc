#include "schedule/places.h"

namespace theseus {
namespace {

constexpr Place kNowhere{Buffer::None, 0};

}  // namespace

bool has_plans(Collective collective) { return collective <= Collective::Scatter; }

bool is_rooted(Collective collective) {
  return collective == Collective::Broadcast || collective == Collective::Reduce || collective == Collective::Gather ||
         collective == Collective::Scatter;
}

bool is_reducing(Collective collective) {
  return collective == Collective::AllReduce || collective == Collective::ReduceScatter ||
         collective == Collective::Reduce;
}

int ChunkSpace::chunks() const {
  switch (collective) {
    case Collective::AllGather:
    case Collective::Gather:
    case Collective::ReduceScatter:
    case Collective::Scatter: return ranks * chunks_per_block;
    case Collective::AllToAll: return ranks * ranks * chunks_per_block;
    default: return chunks_per_block;
  }
}

Place ChunkSpace::input(int rank, int chunk) const {
  const int block = chunk / chunks_per_block;
  const int piece = chunk % chunks_per_block;
  switch (collective) {
    case Collective::AllReduce:
    case Collective::Reduce:
    case Collective::ReduceScatter: return {Buffer::Input, chunk};
    case Collective::Broadcast:
    case Collective::Scatter: return rank == root ? Place{Buffer::Input, chunk} : kNowhere;
    case Collective::AllGather:
    case Collective::Gather: return block == rank ? Place{Buffer::Input, piece} : kNowhere;
    case Collective::AllToAll:
      return block / ranks == rank ? Place{Buffer::Input, block % ranks * chunks_per_block + piece} : kNowhere;
    default: return kNowhere;
  }
}

Place ChunkSpace::output(int rank, int chunk) const {
  const int block = chunk / chunks_per_block;
  const int piece = chunk % chunks_per_block;
  switch (collective) {
    case Collective::AllReduce:
    case Collective::Broadcast:
    case Collective::AllGather: return {Buffer::Output, chunk};
    case Collective::Reduce:
    case Collective::Gather: return rank == root ? Place{Buffer::Output, chunk} : kNowhere;
    case Collective::ReduceScatter:
    case Collective::Scatter: return block == rank ? Place{Buffer::Output, piece} : kNowhere;
    case Collective::AllToAll:
      return block % ranks == rank ? Place{Buffer::Output, block / ranks * chunks_per_block + piece} : kNowhere;
    default: return kNowhere;
  }
}

int ChunkSpace::chunk_at(int rank, Place place) const {
  const bool is_input = place.buffer == Buffer::Input;
  const int block = place.index / chunks_per_block;
  const int piece = place.index % chunks_per_block;
  switch (collective) {
    case Collective::AllGather:
    case Collective::Gather: return is_input ? rank * chunks_per_block + place.index : place.index;
    case Collective::ReduceScatter:
    case Collective::Scatter: return is_input ? place.index : rank * chunks_per_block + place.index;
    case Collective::AllToAll:
      return (is_input ? rank * ranks + block : block * ranks + rank) * chunks_per_block + piece;
    default: return place.index;
  }
}

int ChunkSpace::owner(int chunk) const {
  if (is_reducing(collective)) return -1;
  if (is_rooted(collective) && collective != Collective::Gather) return root;
  const int block = chunk / chunks_per_block;
  return collective == Collective::AllToAll ? block / ranks : block;
}

int ChunkSpace::target(int chunk) const {
  switch (collective) {
    case Collective::Reduce:
    case Collective::Gather: return root;
    case Collective::ReduceScatter:
    case Collective::Scatter: return chunk / chunks_per_block;
    case Collective::AllToAll: return chunk / chunks_per_block % ranks;
    default: return -1;
  }
}

bool ChunkSpace::contributes(int rank, int chunk) const {
  const int only = owner(chunk);
  return only < 0 || only == rank;
}

ChunkSpace space_of(const Plan& plan) { return {plan.collective, plan.ranks, plan.root, plan.chunks_per_block}; }

Result<ChunkSpace> space_of(const Algorithm& algorithm) {
  const std::string who = "algorithm '" + algorithm.name + "': ";
  if (!has_plans(algorithm.collective)) {
    return Status::argument(who + name_of(algorithm.collective) + " has no plans; it runs as point-to-point calls");
  }
  constexpr int kMaxRanks = 1 << 15;  // AllToAll numbers pairs of ranks
  if (algorithm.ranks < 1 || algorithm.ranks > kMaxRanks) {
    return Status::argument(who + "it has " + std::to_string(algorithm.ranks) + " ranks; 1 to " +
                            std::to_string(kMaxRanks) + " are possible");
  }
  if (is_rooted(algorithm.collective) && (algorithm.root < 0 || algorithm.root >= algorithm.ranks)) {
    return Status::argument(who + "root " + std::to_string(algorithm.root) + " is not among its " +
                            std::to_string(algorithm.ranks) + " ranks");
  }
  constexpr int kMaxChunks = 1 << 26;  // whoever compiles needs some bytes for each
  if (algorithm.chunks > kMaxChunks) {
    return Status::argument(who + std::to_string(algorithm.chunks) + " chunks; at most " + std::to_string(kMaxChunks) +
                            " are possible");
  }
  const ChunkSpace unit{algorithm.collective, algorithm.ranks, algorithm.root, 1};
  const int blocks = unit.chunks();
  if (algorithm.chunks < 1 || algorithm.chunks % blocks != 0) {
    return Status::argument(who + std::to_string(algorithm.chunks) + " chunks cannot be cut into " +
                            std::to_string(blocks) + " equal blocks as " + name_of(algorithm.collective) + " demands");
  }
  ChunkSpace space = unit;
  space.chunks_per_block = algorithm.chunks / blocks;
  return space;
}

}  // namespace theseus
