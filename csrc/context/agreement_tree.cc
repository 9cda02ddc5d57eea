#include "context/agreement_tree.h"

#include <cstddef>
#include <unordered_map>

namespace theseus {
namespace {

// Hosts in order of their first rank, ranks of a host ascending.
std::vector<std::vector<int>> ranks_by_host(const std::vector<int>& host_of_rank) {
  std::vector<std::vector<int>> hosts;
  std::unordered_map<int, size_t> index_of;
  for (size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    const auto [found, is_new] = index_of.try_emplace(host_of_rank[rank], hosts.size());
    if (is_new) hosts.emplace_back();
    hosts[found->second].push_back(static_cast<int>(rank));
  }
  return hosts;
}

// Joins `members` by a binomial tree whose root is the first: the parent of a place is that place without its lowest
// bit.
void join(const std::vector<int>& members, std::vector<AgreementTree>& trees) {
  const size_t count = members.size();
  for (size_t place = 0; place < count; ++place) {
    AgreementTree& tree = trees[static_cast<size_t>(members[place])];
    if (place != 0) tree.parent = members[place & (place - 1)];
    size_t bit = 1;
    while ((place & bit) == 0 && bit < count) bit <<= 1;
    for (bit >>= 1; bit != 0; bit >>= 1) {
      if (place + bit < count) tree.children.push_back(members[place + bit]);
    }
  }
}

}  // namespace

std::vector<AgreementTree> agreement_trees(const std::vector<int>& host_of_rank) {
  std::vector<AgreementTree> trees(host_of_rank.size());
  const std::vector<std::vector<int>> hosts = ranks_by_host(host_of_rank);
  std::vector<int> leaders;
  for (const std::vector<int>& ranks : hosts) leaders.push_back(ranks.front());
  join(leaders, trees);  // first, so that what goes to other hosts is sent first
  for (const std::vector<int>& ranks : hosts) join(ranks, trees);
  return trees;
}

}  // namespace theseus
