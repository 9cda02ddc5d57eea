#include "compiler/rank_ends.h"

#include <limits>
#include <unordered_map>

namespace theseus {

RankEnds::RankEnds(const TaskGraph& graph, const Pipeline& pipeline, int rank, bool by_stage)
    : graph_(graph), rank_(rank), first_(static_cast<size_t>(graph.space.ranks) + 1, 0) {
  const auto count = [&](int r, const RankEnd&) { ++first_[static_cast<size_t>(r) + 1]; };
  for (int32_t task = 0; task < graph.size(); ++task) {
    for_each_send(task, count);
    for_each_arrival(task, count);
  }
  for (size_t r = 0; r + 1 < first_.size(); ++r) first_[r + 1] += first_[r];
  ends_.resize(first_.back());
  std::vector<size_t> next(first_.begin(), first_.end() - 1);
  const auto add = [&](int r, const RankEnd& end) { ends_[next[static_cast<size_t>(r)]++] = end; };
  const auto& order = pipeline.order;
  const auto sub_pipeline = [&](size_t i) { return pipeline.sub_pipeline[static_cast<size_t>(order[i])]; };
  places_.resize(order.size());
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    end = begin + 1;
    while (pipeline.sends_first && end < order.size() && sub_pipeline(end) == sub_pipeline(begin)) ++end;
    for (size_t i = begin; i < end; ++i) for_each_send(order[i], add);
    for (size_t i = begin; i < end; ++i) for_each_arrival(order[i], add);
    for (size_t i = begin; i < end; ++i) places_[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
  }
  number_connections(by_stage);
}

std::span<const RankEnd> RankEnds::of(int rank) const {
  const size_t begin = first_[static_cast<size_t>(rank)];
  return {ends_.data() + begin, first_[static_cast<size_t>(rank) + 1] - begin};
}

template <class Visit>
void RankEnds::for_each_send(int32_t task, Visit visit) const {
  const int32_t end = graph_.first_transfer[static_cast<size_t>(task) + 1];
  for (int32_t i = graph_.first_transfer[static_cast<size_t>(task)]; i < end; ++i) {
    const int32_t src = graph_.transfer(i).src;
    if (rank_ < 0 || rank_ == src) visit(src, RankEnd{i, static_cast<uint32_t>(task), 1});
  }
}

template <class Visit>
void RankEnds::for_each_arrival(int32_t task, Visit visit) const {
  const int32_t begin = graph_.first_transfer[static_cast<size_t>(task)];
  const int32_t end = graph_.first_transfer[static_cast<size_t>(task) + 1];
  for (int32_t i = begin; i < end; ++i) {
    if (i > begin && graph_.joins_previous(i)) continue;
    const int32_t dst = graph_.transfer(i).dst;
    if (rank_ < 0 || rank_ == dst) visit(dst, RankEnd{i, static_cast<uint32_t>(task), 0});
  }
}

void RankEnds::number_connections(bool by_stage) {
  const std::vector<int32_t> stages = by_stage ? stages_of(graph_) : std::vector<int32_t>();
  connection_of_.assign(graph_.transfers.size(), -1);
  std::unordered_map<uint64_t, int32_t> ids;  // only looked up, never walked
  const auto ranks = static_cast<uint64_t>(graph_.space.ranks);
  const auto rails = static_cast<uint64_t>(graph_.rails);
  for (int32_t task = 0; task < graph_.size(); ++task) {
    const int32_t stage = by_stage ? stages[static_cast<size_t>(task)] : 0;
    fits_ = fits_ && stage <= std::numeric_limits<int16_t>::max();
    const int32_t end = graph_.first_transfer[static_cast<size_t>(task) + 1];
    for (int32_t i = graph_.first_transfer[static_cast<size_t>(task)]; i < end; ++i) {
      const Transfer& t = graph_.transfer(i);
      if (rank_ >= 0 && t.src != rank_ && t.dst != rank_) continue;
      const uint64_t pair = static_cast<uint64_t>(t.src) * ranks + static_cast<uint64_t>(t.dst);
      const uint64_t key =
          (static_cast<uint64_t>(stage) * rails + static_cast<uint64_t>(t.rail)) * ranks * ranks + pair;
      const auto [known, is_new] = ids.try_emplace(key, static_cast<int32_t>(connections_.size()));
      if (is_new) connections_.push_back({t.src, t.dst, t.rail, static_cast<int16_t>(stage)});
      connection_of_[static_cast<size_t>(i)] = known->second;
    }
  }
}

}  // namespace theseus
