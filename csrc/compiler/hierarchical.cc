// Two levels: the ranks of a host, and the ranks of equal local index across hosts ("a lane"), each lane on its rails.
// chunk = (local index * blocks of a lane + block) * pieces + piece, translated to the numbering of the collective.
#include <string>
#include <utility>

#include "compiler/algorithms.h"
#include "compiler/spread.h"
#include "schedule/places.h"

namespace theseus {
namespace {

struct Grid {
  const Topology& topology;
  std::vector<std::vector<int>> rank_at;  // [host][local]
  int hosts;
  int locals;
  int pieces;

  explicit Grid(const Topology& t)
      : topology(t),
        rank_at(ranks_by_host(t)),
        hosts(static_cast<int>(rank_at.size())),
        locals(static_cast<int>(rank_at[0].size())),
        pieces(pieces_per_rank(locals, t.rails)) {
    if (hosts == 1) pieces = 1;
  }
  int rank(int host, int local) const { return rank_at[static_cast<size_t>(host)][static_cast<size_t>(local)]; }
  int rail(int local, int piece) const { return (local * pieces + piece) % topology.rails; }
};

class Spreader {
 public:
  explicit Spreader(const Grid& grid) : grid_(grid) {}

  // From rank (host, local) to the same lane of every host but itself and `skipped`.
  void along_lane(int host, int local, int chunk, int piece, int step, int skipped = -1) {
    for (int peer = 0; peer < grid_.hosts; ++peer) {
      if (peer != host && peer != skipped) hop(host, local, peer, chunk, piece, step);
    }
  }
  void hop(int from, int local, int to, int chunk, int piece, int step) {
    const auto rail = static_cast<int16_t>(grid_.rail(local, piece));
    add({grid_.rank(from, local), grid_.rank(to, local), step, chunk, TransferOp::Copy, rail});
  }
  // From rank (host, local) to all others of its host but `skipped`.
  void inside_host(int host, int local, int chunk, int step, int skipped = -1) {
    for (int peer = 0; peer < grid_.locals; ++peer) {
      if (peer == local || peer == skipped) continue;
      add({grid_.rank(host, local), grid_.rank(host, peer), step, chunk, TransferOp::Copy, 0});
    }
  }
  void add(const Transfer& transfer) { spread_.push_back(transfer); }
  Transfers take() { return std::move(spread_); }

 private:
  const Grid& grid_;
  Transfers spread_;
};

// Owner (host, local) -> its lane -> the other lanes of every host. `chunk_of(host, local, piece)` numbers the chunks.
template <class ChunkOf>
Transfers spread_all(const Grid& grid, ChunkOf chunk_of) {
  Spreader spreader(grid);
  for (int owner = 0; owner < grid.hosts; ++owner) {
    for (int local = 0; local < grid.locals; ++local) {
      for (int piece = 0; piece < grid.pieces; ++piece) {
        const int chunk = chunk_of(owner, local, piece);
        spreader.along_lane(owner, local, chunk, piece, 0);
        for (int host = 0; host < grid.hosts; ++host) spreader.inside_host(host, local, chunk, 1);
      }
    }
  }
  return spreader.take();
}

// The root's host hands each lane its share; the lane's rank sends every other host a part of it, which that host
// passes on to the rest: so the root's host sends the data once in all, over all rails, and nobody more.
Transfers spread_root(const Grid& grid, int root_host, int root_local) {
  const int parts = grid.hosts > 1 ? grid.hosts - 1 : 1;
  Spreader spreader(grid);
  for (int local = 0; local < grid.locals; ++local) {
    for (int part = 0; part < parts; ++part) {
      const int relay = (root_host + 1 + part) % grid.hosts;
      for (int piece = 0; piece < grid.pieces; ++piece) {
        const int chunk = (local * parts + part) * grid.pieces + piece;
        const int source = grid.rank(root_host, root_local);
        if (local != root_local) spreader.add({source, grid.rank(root_host, local), 0, chunk, TransferOp::Copy, 0});
        if (grid.hosts > 1) {
          spreader.hop(root_host, local, relay, chunk, piece, 1);
          spreader.along_lane(relay, local, chunk, piece, 2, root_host);
        }
        for (int host = 0; host < grid.hosts; ++host) {
          spreader.inside_host(host, local, chunk, 3, host == root_host ? root_local : -1);
        }
      }
    }
  }
  return spreader.take();
}

// AllReduce runs the two halves of every piece one step apart from the next piece's, so that the rails carry one
// piece while another is being reduced.
constexpr int kStagger = 2;

Transfers all_reduce(const Grid& grid) {
  const int blocks = grid.hosts * kStagger;
  Transfers both;
  for (int turn = 0; turn < kStagger; ++turn) {
    const Transfers spread = spread_all(grid, [&](int host, int local, int piece) {
      return (local * blocks + host * kStagger + turn) * grid.pieces + piece;
    });
    Transfers reduced = then(backwards(spread), spread);
    for (Transfer& t : reduced) t.step = t.step * kStagger + turn;
    both.insert(both.end(), reduced.begin(), reduced.end());
  }
  return both;
}

std::pair<int, int> place_of(const Grid& grid, int rank) {
  for (int host = 0; host < grid.hosts; ++host) {
    for (int local = 0; local < grid.locals; ++local) {
      if (grid.rank(host, local) == rank) return {host, local};
    }
  }
  return {0, 0};
}

}  // namespace

Result<Algorithm> hierarchical(Collective collective, const Topology& topology, int root) {
  const TopologySummary summary = summary_of(topology);
  if (summary.ranks_per_host == 0) {
    return Status::argument("hierarchical needs the same number of ranks on every host");
  }
  const Grid grid(topology);
  Algorithm algorithm;
  algorithm.collective = collective;
  algorithm.ranks = summary.ranks;
  algorithm.name = "hierarchical(" + std::to_string(grid.hosts) + "x" + std::to_string(grid.locals) + ")";
  if (collective == Collective::AllReduce) {
    algorithm.transfers = all_reduce(grid);
    algorithm.chunks = summary.ranks * kStagger * grid.pieces;
  } else if (collective == Collective::AllGather || collective == Collective::ReduceScatter) {
    Transfers spread =
        spread_all(grid, [&](int host, int local, int piece) { return grid.rank(host, local) * grid.pieces + piece; });
    algorithm.transfers = is_reducing(collective) ? backwards(spread) : std::move(spread);
    algorithm.chunks = summary.ranks * grid.pieces;
  } else if (collective == Collective::Broadcast || collective == Collective::Reduce) {
    if (root < 0 || root >= summary.ranks) return Status::argument("hierarchical: root is not a rank");
    const auto [root_host, root_local] = place_of(grid, root);
    Transfers spread = spread_root(grid, root_host, root_local);
    algorithm.transfers = is_reducing(collective) ? backwards(spread) : std::move(spread);
    algorithm.root = root;
    algorithm.chunks = grid.locals * (grid.hosts > 1 ? grid.hosts - 1 : 1) * grid.pieces;
  } else {
    return Status::argument(std::string("hierarchical is not made for ") + name_of(collective));
  }
  sort_transfers(algorithm.transfers);
  return algorithm;
}

}  // namespace theseus
