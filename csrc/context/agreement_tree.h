// The tree that an agreement travels along: a binomial tree of hosts, over a binomial tree of each host's ranks.
//
// Of n hosts, n - 1 edges cross from one to another, whatever the number of ranks; no way from a rank to the root is
// longer than log2(hosts) + log2(ranks a host), rounded up each, and no rank has more children than that.
#pragma once

#include <vector>

namespace theseus {

struct AgreementTree {
  int parent = -1;            // -1: the root, rank 0
  std::vector<int> children;  // those with many ranks below them first
};

// By rank. `host_of_rank`: as Topology::host_of_rank; any numbers, equal ones share a host.
std::vector<AgreementTree> agreement_trees(const std::vector<int>& host_of_rank);

}  // namespace theseus
