#include "compiler/registry.h"

#include "compiler/healed.h"
#include "schedule/places.h"

namespace theseus {
namespace {

constexpr uint32_t bit(Collective collective) { return 1u << static_cast<int>(collective); }
constexpr uint32_t kAllReduce = bit(Collective::AllReduce);
constexpr uint32_t kHalves = bit(Collective::AllGather) | bit(Collective::ReduceScatter);
constexpr uint32_t kTrees = bit(Collective::Broadcast) | bit(Collective::Reduce);
constexpr uint32_t kAllToAll = bit(Collective::AllToAll);
constexpr uint32_t kRooted = bit(Collective::Gather) | bit(Collective::Scatter);

Result<Algorithm> build_one_shot(Collective, const Topology& topology, int) {
  return one_shot(static_cast<int>(topology.host_of_rank.size()));
}
Result<Algorithm> build_direct(Collective collective, const Topology& topology, int root) {
  return direct(collective, topology, root);
}
Result<Algorithm> build_ring(Collective collective, const Topology& topology, int root) {
  return ring(collective, topology, root);
}
Result<Algorithm> build_tree(Collective collective, const Topology& topology, int root) {
  return tree(collective, topology, root);
}
Result<Algorithm> build_doubling(Collective collective, const Topology& topology, int) {
  return recursive_doubling(collective, topology);
}
Result<Algorithm> build_halving_doubling(Collective, const Topology& topology, int) {
  return halving_doubling(topology);
}
Result<Algorithm> build_pairwise(Collective, const Topology& topology, int) { return pairwise(topology); }

std::string names_for(Collective collective) {
  std::string names;
  for (const BuiltIn& entry : built_ins()) {
    if (entry.makes(collective)) names += (names.empty() ? "" : ", ") + std::string(entry.name);
  }
  return names.empty() ? "none" : names;
}

Status check_place(Collective collective, const Topology& topology, const TopologySummary& summary, int root) {
  if (summary.ranks < 1) return Status::argument("a topology needs at least one rank");
  if (topology.rails < 1) return Status::argument("a topology needs at least one rail");
  if (is_rooted(collective) && (root < 0 || root >= summary.ranks)) {
    return Status::argument("root " + std::to_string(root) + " is not among the " + std::to_string(summary.ranks) +
                            " ranks");
  }
  return {};
}

}  // namespace

const std::vector<BuiltIn>& built_ins() {
  static const std::vector<BuiltIn> table = {
      {"one_shot", "everyone sends all to everyone and folds", kAllReduce, false, build_one_shot},
      {"direct", "each chunk straight from its owner to all; reduced by its owner",
       kAllReduce | kHalves | kTrees | kAllToAll | kRooted, false, build_direct},
      {"ring", "a ring per rail; a chain for rooted collectives", kAllReduce | kHalves | kTrees, false, build_ring},
      {"tree", "binomial tree", kAllReduce | kTrees, false, build_tree},
      {"doubling", "recursive doubling of whole messages", kAllReduce | bit(Collective::AllGather), false,
       build_doubling},
      {"halving", "recursive halving", bit(Collective::ReduceScatter), false, build_doubling},
      {"halving_doubling", "recursive halving, then doubling", kAllReduce, false, build_halving_doubling},
      {"hierarchical", "ranks of a host share the work, equal local ranks meet over their rails",
       kAllReduce | kHalves | kTrees, true, hierarchical},
      {"hm", "full mesh inside hosts, a ring between the equal local ranks of all hosts", kAllReduce | kHalves, true,
       hierarchical_mesh},
      {"pairwise", "rounds of disjoint pairs", kAllToAll, false, build_pairwise},
  };
  return table;
}

const BuiltIn* find_built_in(const std::string& name) {
  for (const BuiltIn& entry : built_ins()) {
    if (name == entry.name) return &entry;
  }
  return nullptr;
}

Result<Algorithm> build(const std::string& name, Collective collective, const Topology& topology, int root) {
  const TopologySummary summary = summary_of(topology);
  if (is_healed(name)) {
    THESEUS_TRY(check_place(collective, topology, summary, root));
    return healed(name.substr(name.find(':') + 1), collective, topology, root);
  }
  const BuiltIn* entry = find_built_in(name);
  const std::string choice = "; for " + std::string(name_of(collective)) + " there are: " + names_for(collective);
  if (entry == nullptr) return Status::argument("there is no algorithm '" + name + "'" + choice);
  if (!entry->makes(collective)) {
    return Status::argument("algorithm '" + name + "' is not made for " + name_of(collective) + choice);
  }
  THESEUS_TRY(check_place(collective, topology, summary, root));
  return entry->build(collective, topology, root);
}

}  // namespace theseus
