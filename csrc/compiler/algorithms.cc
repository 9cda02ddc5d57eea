#include "compiler/algorithms.h"

#include <algorithm>
#include <utility>

#include "compiler/spread.h"
#include "schedule/places.h"

namespace theseus {
namespace {

int ranks_of(const Topology& topology) { return static_cast<int>(topology.host_of_rank.size()); }

bool spans_hosts(const Topology& topology) { return ranks_by_host(topology).size() > 1; }

Algorithm make(std::string name, Collective collective, int ranks, int chunks, int root, Transfers transfers) {
  sort_transfers(transfers);
  return {std::move(name), collective, ranks, chunks, is_rooted(collective) ? root : 0, std::move(transfers)};
}

// A spread of every owner's chunks, used as the collective demands.
Transfers used_as(Collective collective, const Transfers& spread) {
  if (collective == Collective::AllReduce) return then(backwards(spread), spread);
  return is_reducing(collective) ? backwards(spread) : spread;
}

void reserve(Transfers& transfers, int ranks, int chunks) {
  transfers.reserve(static_cast<size_t>(chunks) * static_cast<size_t>(std::max(ranks - 1, 0)));
}

// chunk = owner * pieces + piece, for every owner, straight to all others.
Transfers spread_direct(const Topology& topology, int pieces) {
  const int ranks = ranks_of(topology);
  Transfers spread;
  reserve(spread, ranks, ranks * pieces);
  for (int chunk = 0; chunk < ranks * pieces; ++chunk) {
    const int owner = chunk / pieces;
    for (int dst = 0; dst < ranks; ++dst) {
      if (dst == owner) continue;
      spread.push_back({owner, dst, 0, chunk, TransferOp::Copy, rail_between(topology, owner, dst, chunk % pieces)});
    }
  }
  return spread;
}

// All chunks of the root, straight to all others. Scatter: only to the rank that wants the chunk.
Transfers spread_from_root(const Topology& topology, int root, int chunks, int pieces, bool is_scatter) {
  const int ranks = ranks_of(topology);
  Transfers spread;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    for (int dst = 0; dst < ranks; ++dst) {
      if (dst == root || (is_scatter && chunk / pieces != dst)) continue;
      spread.push_back({root, dst, 0, chunk, TransferOp::Copy, rail_between(topology, root, dst, chunk % pieces)});
    }
  }
  return spread;
}

// The way round the ring, every piece on a rail of its own. `stride` -1: the other way.
Transfers spread_ring(const Topology& topology, int pieces, int stride) {
  const std::vector<int> order = order_by_host(topology);
  const int ranks = ranks_of(topology);
  const auto at = [&](int position) { return order[static_cast<size_t>(((position % ranks) + ranks) % ranks)]; };
  Transfers spread;
  reserve(spread, ranks, ranks * pieces);
  for (int step = 0; step + 1 < ranks; ++step) {
    for (int position = 0; position < ranks; ++position) {
      const int owner = at(position);
      const int src = at(position + step * stride);
      const int dst = at(position + (step + 1) * stride);
      for (int piece = 0; piece < pieces; ++piece) {
        const int16_t rail = rail_between(topology, src, dst, piece);
        spread.push_back({src, dst, step, owner * pieces + piece, TransferOp::Copy, rail});
      }
    }
  }
  return spread;
}

// From the root along the order of hosts.
Transfers spread_chain(const Topology& topology, int root, int pieces) {
  const std::vector<int> order = order_by_host(topology, root);
  Transfers spread;
  for (size_t i = 0; i + 1 < order.size(); ++i) {
    for (int piece = 0; piece < pieces; ++piece) {
      const int16_t rail = rail_between(topology, order[i], order[i + 1], piece);
      spread.push_back({order[i], order[i + 1], static_cast<int32_t>(i), piece, TransferOp::Copy, rail});
    }
  }
  return spread;
}

// In step t, the first 2^t ranks of the order serve the next 2^t.
Transfers spread_binomial(const Topology& topology, int root) {
  const std::vector<int> order = order_by_host(topology, root);
  const size_t ranks = order.size();
  Transfers spread;
  int step = 0;
  for (size_t served = 1; served < ranks; served *= 2, ++step) {
    for (size_t i = 0; i < served && served + i < ranks; ++i) {
      spread.push_back({order[i], order[served + i], step, 0, TransferOp::Copy, 0});
    }
  }
  return spread;
}

// In step t, every rank passes what it has of the 2^t ranks from itself upwards to the rank 2^t below, so that after
// log2(ranks) steps, rounded up, all have all. chunk = owner.
Transfers spread_doubling(const Topology& topology) {
  const int ranks = ranks_of(topology);
  Transfers spread;
  reserve(spread, ranks, ranks);
  int step = 0;
  for (int distance = 1; distance < ranks; distance *= 2, ++step) {
    for (int rank = 0; rank < ranks; ++rank) {
      const int dst = (rank - distance + ranks) % ranks;
      for (int i = 0; i < std::min(distance, ranks - distance); ++i) {
        const int owner = (rank + i) % ranks;
        spread.push_back({rank, dst, step, owner, TransferOp::Copy, rail_between(topology, rank, dst, owner)});
      }
    }
  }
  return spread;
}

// Every pair (s, d) in the step that `round` gives it.
template <class Round>
Algorithm all_to_all(std::string name, const Topology& topology, Round round) {
  const int ranks = ranks_of(topology);
  const TopologySummary summary = summary_of(topology);
  const int pieces = summary.hosts > 1 ? pieces_per_rank(summary.ranks_per_host, summary.rails) : 1;
  std::vector<int> local(static_cast<size_t>(ranks), 0);
  for (const auto& host : ranks_by_host(topology)) {
    for (size_t i = 0; i < host.size(); ++i) local[static_cast<size_t>(host[i])] = static_cast<int>(i);
  }
  Transfers transfers;
  reserve(transfers, ranks, ranks * pieces);
  for (int src = 0; src < ranks; ++src) {
    for (int dst = 0; dst < ranks; ++dst) {
      if (src == dst) continue;
      for (int piece = 0; piece < pieces; ++piece) {
        // Over the destinations of one host and the pieces, the rails of one source come up equally often.
        const int turn = local[static_cast<size_t>(src)] + local[static_cast<size_t>(dst)] * pieces + piece;
        const int16_t rail = rail_between(topology, src, dst, turn);
        transfers.push_back({src, dst, round(src, dst), (src * ranks + dst) * pieces + piece, TransferOp::Copy, rail});
      }
    }
  }
  return make(std::move(name), Collective::AllToAll, ranks, ranks * ranks * pieces, 0, std::move(transfers));
}

}  // namespace

Algorithm one_shot(int ranks) {
  Transfers transfers;
  for (int src = 0; src < ranks; ++src) {
    for (int dst = 0; dst < ranks; ++dst) {
      if (src != dst) transfers.push_back({src, dst, 0, 0, TransferOp::Reduce, 0});
    }
  }
  return make("one_shot", Collective::AllReduce, ranks, 1, 0, std::move(transfers));
}

Algorithm direct(Collective collective, const Topology& topology, int root) {
  if (collective == Collective::AllToAll) return all_to_all("direct", topology, [](int, int) { return 0; });
  const int ranks = ranks_of(topology);
  const int pieces = spans_hosts(topology) ? topology.rails : 1;
  const bool is_per_rank = collective == Collective::Gather || collective == Collective::Scatter;
  if (is_per_rank) {
    Transfers spread = spread_from_root(topology, root, ranks * pieces, pieces, true);
    if (collective == Collective::Gather) spread = backwards(spread, TransferOp::Copy);
    return make("direct", collective, ranks, ranks * pieces, root, std::move(spread));
  }
  if (is_rooted(collective)) {
    Transfers spread = spread_from_root(topology, root, pieces, pieces, false);
    return make("direct", collective, ranks, pieces, root, used_as(collective, spread));
  }
  return make("direct", collective, ranks, ranks * pieces, root, used_as(collective, spread_direct(topology, pieces)));
}

Algorithm ring(Collective collective, const Topology& topology, int root) {
  const int ranks = ranks_of(topology);
  const int pieces = spans_hosts(topology) ? topology.rails : 1;
  if (is_rooted(collective)) {
    return make("ring", collective, ranks, pieces, root, used_as(collective, spread_chain(topology, root, pieces)));
  }
  // Backwards along the other direction is forwards: both halves of an AllReduce use the same connections.
  Transfers transfers;
  if (is_reducing(collective)) transfers = backwards(spread_ring(topology, pieces, -1));
  if (collective != Collective::ReduceScatter) transfers = then(std::move(transfers), spread_ring(topology, pieces, 1));
  return make("ring", collective, ranks, ranks * pieces, 0, std::move(transfers));
}

Algorithm recursive_doubling(Collective collective, const Topology& topology) {
  const int ranks = ranks_of(topology);
  if (collective != Collective::AllReduce) {
    const std::string name = collective == Collective::ReduceScatter ? "halving" : "doubling";
    return make(name, collective, ranks, ranks, 0, used_as(collective, spread_doubling(topology)));
  }
  int power = 1;
  while (power * 2 <= ranks) power *= 2;
  Transfers transfers;
  for (int extra = power; extra < ranks; ++extra) {
    transfers.push_back({extra, extra - power, 0, 0, TransferOp::Reduce, 0});
  }
  int step = ranks > power ? 1 : 0;
  for (int distance = 1; distance < power; distance *= 2, ++step) {
    for (int rank = 0; rank < power; ++rank) {
      transfers.push_back({rank, rank ^ distance, step, 0, TransferOp::Reduce, 0});
    }
  }
  for (int extra = power; extra < ranks; ++extra) {
    transfers.push_back({extra - power, extra, step, 0, TransferOp::Copy, 0});
  }
  return make("doubling", collective, ranks, 1, 0, std::move(transfers));
}

Algorithm halving_doubling(const Topology& topology) {
  const int ranks = ranks_of(topology);
  return make("halving_doubling", Collective::AllReduce, ranks, ranks, 0,
              used_as(Collective::AllReduce, spread_doubling(topology)));
}

Algorithm tree(Collective collective, const Topology& topology, int root) {
  const int front = is_rooted(collective) ? root : 0;
  return make("tree", collective, ranks_of(topology), 1, front, used_as(collective, spread_binomial(topology, front)));
}

Algorithm pairwise(const Topology& topology) {
  const int ranks = ranks_of(topology);
  const bool is_power = (ranks & (ranks - 1)) == 0;
  return all_to_all("pairwise", topology,
                    [=](int src, int dst) { return (is_power ? src ^ dst : (dst - src + ranks) % ranks) - 1; });
}

}  // namespace theseus
