// The order in which the ranks that a chunk reaches in one step can take it.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/algorithm.h"

namespace theseus {

// One step of one chunk: transfers [begin, end), sorted by receiver. A rank that also sends in this step must have sent
// before anything arrives, so it comes after the ranks that it sends to; ranks that wait for each other in a circle
// exchange, and go together.
class ExchangeOrder {
 public:
  explicit ExchangeOrder(int ranks) : node_of_(static_cast<size_t>(ranks), -1) {}

  // Receivers, group by group in an order without waits backwards. Valid until the next call.
  struct Group {
    std::vector<int32_t> receivers;  // ascending
  };
  const std::vector<Group>& order(const Transfer* begin, const Transfer* end);
  // False: no receiver sends in this step, so any order will do and each goes alone.
  bool is_needed(const Transfer* begin, const Transfer* end);

 private:
  struct Node {
    int32_t rank;
    int32_t first_edge = 0;  // into edges_: the receivers that it sends to
    int32_t edges = 0;
    int32_t index = -1;  // Tarjan's: order of discovery
    int32_t low = 0;
    bool on_stack = false;
  };
  void build(const Transfer* begin, const Transfer* end);
  void search(int32_t root);
  void close(int32_t node);

  std::vector<int32_t> node_of_;  // by rank; -1: receives nothing in this step
  std::vector<Node> nodes_;
  std::vector<int32_t> edges_;
  std::vector<int32_t> stack_;
  std::vector<std::pair<int32_t, int32_t>> path_;  // node, edges followed
  int32_t discovered_ = 0;
  std::vector<Group> groups_;
};

}  // namespace theseus
