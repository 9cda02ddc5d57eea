#include "compiler/exchange.h"

#include <algorithm>
#include <utility>

namespace theseus {

bool ExchangeOrder::is_needed(const Transfer* begin, const Transfer* end) {
  if (end - begin < 2) return false;
  for (const Transfer* t = begin; t != end; ++t) node_of_[static_cast<size_t>(t->dst)] = 0;
  bool needed = false;
  for (const Transfer* t = begin; t != end; ++t) needed |= node_of_[static_cast<size_t>(t->src)] >= 0;
  for (const Transfer* t = begin; t != end; ++t) node_of_[static_cast<size_t>(t->dst)] = -1;
  return needed;
}

const std::vector<ExchangeOrder::Group>& ExchangeOrder::order(const Transfer* begin, const Transfer* end) {
  build(begin, end);
  groups_.clear();
  discovered_ = 0;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (nodes_[n].index < 0) search(static_cast<int32_t>(n));
  }
  for (const Node& node : nodes_) node_of_[static_cast<size_t>(node.rank)] = -1;
  return groups_;
}

// A node for each receiver; an edge to each receiver that it sends to.
void ExchangeOrder::build(const Transfer* begin, const Transfer* end) {
  nodes_.clear();
  for (const Transfer* t = begin; t != end; ++t) {
    int32_t& node = node_of_[static_cast<size_t>(t->dst)];
    if (node >= 0) continue;
    node = static_cast<int32_t>(nodes_.size());
    nodes_.push_back({t->dst});
  }
  const auto sender = [&](const Transfer& t) { return node_of_[static_cast<size_t>(t.src)]; };
  for (const Transfer* t = begin; t != end; ++t) {
    if (sender(*t) >= 0) ++nodes_[static_cast<size_t>(sender(*t))].edges;
  }
  int32_t edges = 0;
  for (Node& node : nodes_) {
    node.first_edge = edges;
    edges += std::exchange(node.edges, 0);
  }
  edges_.resize(static_cast<size_t>(edges));
  for (const Transfer* t = begin; t != end; ++t) {
    if (sender(*t) < 0) continue;
    Node& node = nodes_[static_cast<size_t>(sender(*t))];
    edges_[static_cast<size_t>(node.first_edge + node.edges++)] = node_of_[static_cast<size_t>(t->dst)];
  }
}

// Tarjan's strongly connected components, without recursion: what is closed first waits for nobody that is left.
void ExchangeOrder::search(int32_t root) {
  const auto discover = [&](int32_t n) {
    Node& node = nodes_[static_cast<size_t>(n)];
    node.index = node.low = discovered_++;
    node.on_stack = true;
    stack_.push_back(n);
    path_.emplace_back(n, 0);
  };
  discover(root);
  while (!path_.empty()) {
    const int32_t n = path_.back().first;
    Node& node = nodes_[static_cast<size_t>(n)];
    if (path_.back().second < node.edges) {
      const int32_t next = edges_[static_cast<size_t>(node.first_edge + path_.back().second++)];
      Node& other = nodes_[static_cast<size_t>(next)];
      if (other.index < 0) {
        discover(next);
      } else if (other.on_stack) {
        node.low = std::min(node.low, other.index);
      }
      continue;
    }
    path_.pop_back();
    if (!path_.empty()) {
      Node& parent = nodes_[static_cast<size_t>(path_.back().first)];
      parent.low = std::min(parent.low, node.low);
    }
    if (node.low == node.index) close(n);
  }
}

void ExchangeOrder::close(int32_t node) {
  Group group;
  int32_t member = -1;
  while (member != node) {
    member = stack_.back();
    stack_.pop_back();
    nodes_[static_cast<size_t>(member)].on_stack = false;
    group.receivers.push_back(nodes_[static_cast<size_t>(member)].rank);
  }
  std::sort(group.receivers.begin(), group.receivers.end());
  groups_.push_back(std::move(group));
}

}  // namespace theseus
