#include "schedule/topology.h"

#include <algorithm>
#include <cstddef>

namespace theseus {

Topology single_host(int ranks, int rails) { return {std::vector<int>(static_cast<size_t>(ranks), 0), rails}; }

Topology uniform_hosts(int hosts, int ranks_per_host, int rails) {
  Topology topology;
  topology.rails = rails;
  for (int host = 0; host < hosts; ++host) {
    topology.host_of_rank.insert(topology.host_of_rank.end(), static_cast<size_t>(ranks_per_host), host);
  }
  return topology;
}

std::vector<std::vector<int>> ranks_by_host(const Topology& topology) {
  std::vector<int> names;
  std::vector<std::vector<int>> hosts;
  for (size_t rank = 0; rank < topology.host_of_rank.size(); ++rank) {
    const int name = topology.host_of_rank[rank];
    const auto known = std::find(names.begin(), names.end(), name);
    if (known == names.end()) {
      names.push_back(name);
      hosts.push_back({static_cast<int>(rank)});
    } else {
      hosts[static_cast<size_t>(known - names.begin())].push_back(static_cast<int>(rank));
    }
  }
  return hosts;
}

TopologySummary summary_of(const Topology& topology) {
  const auto hosts = ranks_by_host(topology);
  TopologySummary summary;
  summary.ranks = static_cast<int>(topology.host_of_rank.size());
  summary.hosts = static_cast<int>(hosts.size());
  summary.rails = std::max(topology.rails, 1);
  summary.ranks_per_host = hosts.empty() ? 0 : static_cast<int>(hosts[0].size());
  for (const auto& host : hosts) {
    if (host.size() != hosts[0].size()) summary.ranks_per_host = 0;
  }
  return summary;
}

}  // namespace theseus
