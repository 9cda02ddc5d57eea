// The hierarchical mesh (ResCCL, appendix A): a full mesh inside each host, and a ring through the ranks of equal local
// index of all hosts, its lane. Forwards, an owner's chunk goes to its local peers and round its lane; every rank of
// the lane hands on what comes round to its local peers. Backwards, with reductions: every rank of the lane folds what
// its local peers have, and the sum travels round the lane to the owner. Both halves of an AllReduce go round in the
// same direction, so they use the same connections: 2 for each local peer and 2 for the lane.
#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "compiler/algorithms.h"
#include "compiler/spread.h"
#include "schedule/places.h"

namespace theseus {
namespace {

class HierarchicalMesh {
 public:
  HierarchicalMesh(const Topology& topology, Collective collective)
      : topology_(topology),
        rank_at_(ranks_by_host(topology)),
        hosts_(static_cast<int>(rank_at_.size())),
        locals_(static_cast<int>(rank_at_[0].size())),
        pieces_(hosts_ > 1 ? pieces_per_rank(locals_, topology.rails) : 1),
        reduces_(is_reducing(collective)),
        spreads_(collective != Collective::ReduceScatter) {}

  int pieces() const { return pieces_; }

  // Chunk by chunk, step by step. `owner` is (host, local).
  void add_chunk(int host, int local, int piece) {
    chunk_ = rank(host, local) * pieces_ + piece;
    rail_ = static_cast<int16_t>((local * pieces_ + piece) % topology_.rails);
    if (reduces_) gather(host, local);
    if (spreads_) spread(host, local);
  }

  Transfers take() { return std::move(transfers_); }
  void reserve(int chunks) {
    const auto each = static_cast<size_t>(hosts_ * locals_ - 1) * (reduces_ && spreads_ ? 2 : 1);
    transfers_.reserve(static_cast<size_t>(chunks) * each);
  }

 private:
  int rank(int host, int local) const {
    return rank_at_[static_cast<size_t>(host % hosts_)][static_cast<size_t>(local)];
  }
  void add(int src, int dst, int step, TransferOp op, int16_t rail) {
    transfers_.push_back({src, dst, step, chunk_, op, rail});
  }

  // Step 0 folds inside the hosts, steps 1 to hosts - 1 go round the lane and end at the owner.
  void gather(int owner, int local) {
    for (int host = 0; host < hosts_; ++host) {
      for (int peer = 0; peer < locals_; ++peer) {
        if (peer != local) add(rank(host, peer), rank(host, local), 0, TransferOp::Reduce, 0);
      }
    }
    for (int hop = 1; hop < hosts_; ++hop) {
      add(rank(owner + hop, local), rank(owner + hop + 1, local), hop, TransferOp::Reduce, rail_);
    }
  }

  // In step s, hop s + 1 of the lane, and inside each host one step after the chunk came there.
  void spread(int owner, int local) {
    const int first = reduces_ ? hosts_ : 0;
    for (int step = 0; step < hosts_; ++step) {
      const int here = rank(owner + step, local);
      if (step + 1 < hosts_) add(here, rank(owner + step + 1, local), first + step, TransferOp::Copy, rail_);
      for (int peer = 0; peer < locals_; ++peer) {
        if (peer != local) add(here, rank(owner + step, peer), first + step, TransferOp::Copy, 0);
      }
    }
  }

  const Topology& topology_;
  std::vector<std::vector<int>> rank_at_;  // [host][local]
  int hosts_;
  int locals_;
  int pieces_;
  bool reduces_;
  bool spreads_;
  int chunk_ = 0;
  int16_t rail_ = 0;
  Transfers transfers_;
};

}  // namespace

Result<Algorithm> hierarchical_mesh(Collective collective, const Topology& topology, int) {
  const TopologySummary summary = summary_of(topology);
  if (summary.ranks_per_host == 0) return Status::argument("hm needs the same number of ranks on every host");
  HierarchicalMesh mesh(topology, collective);
  Algorithm algorithm;
  algorithm.name = "hm(" + std::to_string(summary.hosts) + "x" + std::to_string(summary.ranks_per_host) + ")";
  algorithm.collective = collective;
  algorithm.ranks = summary.ranks;
  algorithm.chunks = summary.ranks * mesh.pieces();
  mesh.reserve(algorithm.chunks);
  for (int host = 0; host < summary.hosts; ++host) {
    for (int local = 0; local < summary.ranks_per_host; ++local) {
      for (int piece = 0; piece < mesh.pieces(); ++piece) mesh.add_chunk(host, local, piece);
    }
  }
  algorithm.transfers = mesh.take();
  return algorithm;
}

}  // namespace theseus
