#include "compiler/transfers.h"

#include <algorithm>

namespace theseus {
namespace {

Status check(const Algorithm& algorithm, const Topology& topology, const Transfer& transfer) {
  const std::string who = "algorithm '" + algorithm.name + "', " + describe(transfer) + ": ";
  const auto is_rank = [&](int rank) { return rank >= 0 && rank < algorithm.ranks; };
  if (!is_rank(transfer.src) || !is_rank(transfer.dst)) {
    return Status::argument(who + "the algorithm has ranks 0 to " + std::to_string(algorithm.ranks - 1));
  }
  if (transfer.src == transfer.dst) return Status::argument(who + "a rank cannot send to itself");
  if (transfer.chunk < 0 || transfer.chunk >= algorithm.chunks) {
    return Status::argument(who + "the algorithm has chunks 0 to " + std::to_string(algorithm.chunks - 1));
  }
  if (transfer.step < 0) return Status::argument(who + "steps count from 0");
  if (transfer.rail < -1 || transfer.rail >= topology.rails) {
    return Status::argument(who + "rail " + std::to_string(transfer.rail) + " is none of the " +
                            std::to_string(topology.rails) + " rails");
  }
  if (transfer.op == TransferOp::Reduce && !is_reducing(algorithm.collective)) {
    return Status::argument(who + name_of(algorithm.collective) + " does not reduce");
  }
  return {};
}

// Open addressing over (src, dst, rail, step); stops at the first pair of messages that share a step.
bool is_lockstep(const ChunkedTransfers& grouped) {
  size_t size = 16;
  while (size < 2 * grouped.transfers.size()) size *= 2;
  std::vector<uint64_t> seen(size, 0);
  for (const Transfer& t : grouped.transfers) {
    const auto ranks = static_cast<uint64_t>(grouped.space.ranks);
    const uint64_t pair = static_cast<uint64_t>(t.src) * ranks + static_cast<uint64_t>(t.dst);
    const uint64_t connection = pair * static_cast<uint64_t>(grouped.rails) + static_cast<uint64_t>(t.rail);
    const uint64_t key = ((connection << 31) | static_cast<uint64_t>(t.step)) + 1;
    size_t slot = (key * 0x9E3779B97F4A7C15ull >> 20) & (size - 1);
    while (seen[slot] != 0 && seen[slot] != key) slot = (slot + 1) & (size - 1);
    if (seen[slot] == key) return false;
    seen[slot] = key;
  }
  return true;
}

// True where some rank passes a chunk on in the step after its single arrival: only then is there anything to fuse.
bool has_relay(const ChunkedTransfers& grouped) {
  struct Arrival {
    int32_t chunk = -1, step = -1, count = 0;
  };
  std::vector<Arrival> arrivals(static_cast<size_t>(grouped.space.ranks));
  for (const Transfer& t : grouped.transfers) {
    const Arrival& last = arrivals[static_cast<size_t>(t.src)];
    if (last.chunk == t.chunk && last.step + 1 == t.step && last.count == 1) return true;
    Arrival& arrival = arrivals[static_cast<size_t>(t.dst)];
    const bool again = arrival.chunk == t.chunk && arrival.step == t.step;
    arrival = {t.chunk, t.step, again ? arrival.count + 1 : 1};
  }
  return false;
}

bool is_exchange_free(const ChunkedTransfers& grouped) {
  std::vector<int32_t> sent_at(static_cast<size_t>(grouped.space.ranks), -1);
  const auto& transfers = grouped.transfers;
  int32_t group = 0;
  for (size_t begin = 0, end = 0; begin < transfers.size(); begin = end, ++group) {
    const auto same_group = [&](const Transfer& t) {
      return t.chunk == transfers[begin].chunk && t.step == transfers[begin].step;
    };
    for (end = begin; end < transfers.size() && same_group(transfers[end]); ++end) {
      sent_at[static_cast<size_t>(transfers[end].src)] = group;
    }
    for (size_t i = begin; i < end; ++i) {
      if (sent_at[static_cast<size_t>(transfers[i].dst)] == group) return false;
    }
  }
  return true;
}

// Counting sort by chunk, then each chunk's few transfers by (step, dst, src).
void group_by_chunk(const Algorithm& algorithm, ChunkedTransfers& grouped) {
  auto& first = grouped.first;
  first.assign(static_cast<size_t>(algorithm.chunks) + 1, 0);
  for (const Transfer& t : algorithm.transfers) ++first[static_cast<size_t>(t.chunk) + 1];
  for (size_t c = 0; c + 1 < first.size(); ++c) first[c + 1] += first[c];
  std::vector<int32_t> next(first.begin(), first.end() - 1);
  grouped.transfers.resize(algorithm.transfers.size());
  for (const Transfer& t : algorithm.transfers) {
    grouped.transfers[static_cast<size_t>(next[static_cast<size_t>(t.chunk)]++)] = t;
  }
  const auto before = [](const Transfer& a, const Transfer& b) {
    if (a.step != b.step) return a.step < b.step;
    return a.dst != b.dst ? a.dst < b.dst : a.src < b.src;
  };
  for (size_t c = 0; c + 1 < first.size(); ++c) {
    const auto begin = grouped.transfers.begin() + first[c];
    const auto end = grouped.transfers.begin() + first[c + 1];
    if (!std::is_sorted(begin, end, before)) std::sort(begin, end, before);
  }
}

}  // namespace

std::string describe(const Transfer& transfer) {
  return "transfer " + std::to_string(transfer.src) + " -> " + std::to_string(transfer.dst) + " of chunk " +
         std::to_string(transfer.chunk) + " at step " + std::to_string(transfer.step);
}

Result<ChunkedTransfers> chunk_transfers(const Algorithm& algorithm, const Topology& topology) {
  if (topology.host_of_rank.size() != static_cast<size_t>(algorithm.ranks)) {
    return Status::argument("algorithm '" + algorithm.name + "' has " + std::to_string(algorithm.ranks) +
                            " ranks but the topology names the hosts of " +
                            std::to_string(topology.host_of_rank.size()));
  }
  if (topology.rails < 1) return Status::argument("a topology needs at least one rail");
  auto space = space_of(algorithm);
  if (!space.ok()) return space.status();
  for (const Transfer& t : algorithm.transfers) {
    const bool good = t.src >= 0 && t.src < algorithm.ranks && t.dst >= 0 && t.dst < algorithm.ranks &&
                      t.src != t.dst && t.chunk >= 0 && t.chunk < algorithm.chunks && t.step >= 0 && t.rail >= -1 &&
                      t.rail < topology.rails && (t.op == TransferOp::Copy || is_reducing(algorithm.collective));
    if (!good) return check(algorithm, topology, t);
  }
  ChunkedTransfers grouped;
  grouped.space = *space;
  grouped.rails = topology.rails;
  group_by_chunk(algorithm, grouped);
  for (Transfer& t : grouped.transfers) {
    const bool same_host =
        topology.host_of_rank[static_cast<size_t>(t.src)] == topology.host_of_rank[static_cast<size_t>(t.dst)];
    if (t.rail < 0) t.rail = same_host ? int16_t{0} : static_cast<int16_t>(t.chunk % topology.rails);
    grouped.several_hosts |= !same_host;
  }
  return grouped;
}

void classify(ChunkedTransfers& grouped) {
  grouped.exchange_free = is_exchange_free(grouped);
  grouped.fusable = grouped.several_hosts && has_relay(grouped) && is_lockstep(grouped);
}

}  // namespace theseus
