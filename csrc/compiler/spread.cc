#include "compiler/spread.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace theseus {

int steps_of(const Transfers& transfers) {
  int steps = 0;
  for (const Transfer& t : transfers) steps = std::max(steps, t.step + 1);
  return steps;
}

Transfers backwards(const Transfers& spread, TransferOp op) {
  const int last = steps_of(spread) - 1;
  Transfers result;
  result.reserve(spread.size());
  for (const Transfer& t : spread) result.push_back({t.dst, t.src, last - t.step, t.chunk, op, t.rail});
  return result;
}

Transfers then(Transfers first, Transfers second) {
  const int steps = steps_of(first);
  first.reserve(first.size() + second.size());
  for (Transfer t : second) {
    t.step += steps;
    first.push_back(t);
  }
  return first;
}

void sort_transfers(Transfers& transfers) {
  std::sort(transfers.begin(), transfers.end(), [](const Transfer& a, const Transfer& b) {
    if (a.step != b.step) return a.step < b.step;
    if (a.chunk != b.chunk) return a.chunk < b.chunk;
    return a.src != b.src ? a.src < b.src : a.dst < b.dst;
  });
}

std::vector<int> order_by_host(const Topology& topology, int front) {
  auto hosts = ranks_by_host(topology);
  std::vector<int> order{front};
  const auto is_front = [&](const std::vector<int>& host) {
    return std::find(host.begin(), host.end(), front) != host.end();
  };
  std::rotate(hosts.begin(), std::find_if(hosts.begin(), hosts.end(), is_front), hosts.end());
  for (const auto& host : hosts) {
    for (const int rank : host) {
      if (rank != front) order.push_back(rank);
    }
  }
  return order;
}

int pieces_per_rank(int ranks_per_host, int rails) { return rails / std::gcd(std::max(ranks_per_host, 1), rails); }

int16_t rail_between(const Topology& topology, int src, int dst, int rail) {
  const bool same_host =
      topology.host_of_rank[static_cast<size_t>(src)] == topology.host_of_rank[static_cast<size_t>(dst)];
  return same_host ? int16_t{0} : static_cast<int16_t>(rail % topology.rails);
}

}  // namespace theseus
