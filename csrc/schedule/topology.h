// Which ranks share a host, and how many rails (NICs) join the hosts: all that a schedule needs to know of a cluster.
#pragma once

#include <vector>

namespace theseus {

struct Topology {
  std::vector<int> host_of_rank;  // any numbers; equal numbers share a host
  int rails = 1;                  // rails of every host
};

// `ranks` ranks on one host.
Topology single_host(int ranks, int rails = 1);
// `hosts` hosts of `ranks_per_host` consecutive ranks each.
Topology uniform_hosts(int hosts, int ranks_per_host, int rails);

// Ranks by host: hosts in order of their first rank, ranks of a host in increasing order.
std::vector<std::vector<int>> ranks_by_host(const Topology& topology);

// What a policy may look at.
struct TopologySummary {
  int ranks = 1;
  int hosts = 1;
  int ranks_per_host = 1;  // 0 where hosts have unequal numbers of ranks
  int rails = 1;
};
TopologySummary summary_of(const Topology& topology);

}  // namespace theseus
