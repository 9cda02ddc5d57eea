#include "compiler/lower.h"

#include "compiler/rank_lowering.h"
#include "compiler/transfers.h"

namespace theseus {

Result<Plan> lower(const Algorithm& algorithm, const Topology& topology, int rank) {
  auto grouped = chunk_transfers(algorithm, topology);
  if (!grouped.ok()) return grouped.status();
  classify(*grouped);
  if (rank != kAllRanks && (rank < 0 || rank >= algorithm.ranks)) {
    return Status::argument("algorithm '" + algorithm.name + "' has no rank " + std::to_string(rank));
  }
  Plan plan;
  plan.name = algorithm.name;
  plan.collective = algorithm.collective;
  plan.ranks = algorithm.ranks;
  plan.root = is_rooted(algorithm.collective) ? algorithm.root : 0;
  plan.chunks_per_block = grouped->space.chunks_per_block;
  // Without fused instructions and exchanges, a message's two ends go up in lower.h's order as one event.
  plan.rendezvous_safe = grouped->exchange_free && !grouped->fusable;
  const int first = rank == kAllRanks ? 0 : rank;
  const int last = rank == kAllRanks ? algorithm.ranks - 1 : rank;
  for (int r = first; r <= last; ++r) {
    auto part = RankLowering(*grouped, r).run();
    if (!part.ok()) return Status::argument("algorithm '" + algorithm.name + "', " + part.status().message());
    plan.rank_plans.push_back(std::move(*part));
  }
  return plan;
}

}  // namespace theseus
