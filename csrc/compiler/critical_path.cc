#include "compiler/critical_path.h"

#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>
#include <numeric>
#include <queue>
#include <span>
#include <tuple>
#include <utility>

namespace theseus {
namespace {

template <class T>
using MinHeap = std::priority_queue<T, std::vector<T>, std::greater<>>;

// Tasks that could start wait at a link: each at one of its own, the one that was last seen in its way. When that falls
// idle, its first waiter starts, or goes to wait at another link that is in its way. Tasks are named by rank: the
// longer the way to the end, the smaller.
class CriticalPath {
 public:
  explicit CriticalPath(const TaskGraph& graph)
      : graph_(graph),
        tasks_(static_cast<size_t>(graph.size())),
        pending_(tasks_),
        ready_at_(tasks_, 0),
        start_(tasks_, 0),
        waiting_(graph.links.size()),
        free_at_(graph.links.size(), 0),
        next_place_(graph.links.size(), 0) {
    result_.sub_pipeline.assign(tasks_, 0);
    find_successors();
    rank_by_remaining_path();
  }

  Pipeline run() {
    for (size_t t = 0; t < tasks_; ++t) {
      if (pending_[t] == 0) ready_.push({0, rank_[t]});
    }
    while (!ready_.empty() || !idle_.empty()) go_to_next_instant();
    sort_order();
    return std::move(result_);
  }

 private:
  using Moment = std::pair<int64_t, int32_t>;  // a time, and a rank or a link
  struct Turn {
    int32_t rank, link;
    auto operator<=>(const Turn&) const = default;
  };

  static size_t at(int32_t index) { return static_cast<size_t>(index); }
  int32_t length(int32_t task) const { return graph_.between_hosts[at(task)] != 0 ? kBetweenHosts : kInsideHost; }

  void find_successors() {
    first_successor_.assign(tasks_ + 1, 0);
    for (const int32_t p : graph_.predecessors) ++first_successor_[at(p) + 1];
    std::partial_sum(first_successor_.begin(), first_successor_.end(), first_successor_.begin());
    successors_.resize(graph_.predecessors.size());
    std::vector<int32_t> next(first_successor_.begin(), first_successor_.end() - 1);
    for (int32_t t = 0; t < graph_.size(); ++t) {
      const auto predecessors = graph_.predecessors_of(t);
      pending_[at(t)] = static_cast<int32_t>(predecessors.size());
      for (const int32_t p : predecessors) successors_[at(next[at(p)]++)] = t;
    }
  }

  std::span<const int32_t> successors_of(int32_t task) const {
    const auto begin = at(first_successor_[at(task)]);
    return {successors_.data() + begin, at(first_successor_[at(task) + 1]) - begin};
  }

  void rank_by_remaining_path() {
    std::vector<int32_t> remaining(tasks_, 0);
    for (int32_t t = graph_.size(); t-- > 0;) {
      for (const int32_t s : successors_of(t)) remaining[at(t)] = std::max(remaining[at(t)], remaining[at(s)]);
      remaining[at(t)] += length(t);
    }
    by_rank_.resize(tasks_);
    std::iota(by_rank_.begin(), by_rank_.end(), 0);
    std::stable_sort(by_rank_.begin(), by_rank_.end(),
                     [&](int32_t a, int32_t b) { return remaining[at(a)] > remaining[at(b)]; });
    rank_.resize(tasks_);
    for (size_t r = 0; r < tasks_; ++r) rank_[at(by_rank_[r])] = static_cast<int32_t>(r);
  }

  void go_to_next_instant() {
    now_ = std::min(ready_.empty() ? INT64_MAX : ready_.top().first, idle_.empty() ? INT64_MAX : idle_.top().first);
    for (; !idle_.empty() && idle_.top().first == now_; idle_.pop()) take_turn(idle_.top().second);
    for (; !ready_.empty() && ready_.top().first == now_; ready_.pop()) {
      const int32_t rank = ready_.top().second;
      const int32_t link = graph_.links_of(by_rank_[at(rank)])[0];
      waiting_[at(link)].push(rank);
      if (waiting_[at(link)].top() == rank) take_turn(link);
    }
    while (!turns_.empty()) {
      const Turn turn = turns_.top();
      turns_.pop();
      const auto& queue = waiting_[at(turn.link)];
      // Else the link has got another head, which has a turn of its own.
      if (!queue.empty() && queue.top() == turn.rank && free_at_[at(turn.link)] <= now_) look_at(turn);
    }
  }

  void take_turn(int32_t link) {
    if (!waiting_[at(link)].empty()) turns_.push({waiting_[at(link)].top(), link});
  }

  // Starts the head of an idle link, or sends it to wait where it is blocked.
  void look_at(const Turn& turn) {
    waiting_[at(turn.link)].pop();
    const int32_t task = by_rank_[at(turn.rank)];
    const auto links = graph_.links_of(task);
    const auto blocked = std::find_if(links.begin(), links.end(), [&](int32_t l) { return free_at_[at(l)] > now_; });
    if (blocked == links.end()) return start(task);
    waiting_[at(*blocked)].push(turn.rank);
    take_turn(turn.link);
  }

  void start(int32_t task) {
    const auto links = graph_.links_of(task);
    const int64_t end = now_ + length(task);
    int32_t& place = result_.sub_pipeline[at(task)];
    for (const int32_t link : links) place = std::max(place, next_place_[at(link)]);
    for (const int32_t link : links) {
      next_place_[at(link)] = place + 1;
      free_at_[at(link)] = end;
      idle_.push({end, link});
    }
    start_[at(task)] = now_;
    result_.count = std::max(result_.count, place + 1);
    for (const int32_t s : successors_of(task)) {
      result_.sub_pipeline[at(s)] = std::max(result_.sub_pipeline[at(s)], place + 1);
      ready_at_[at(s)] = std::max(ready_at_[at(s)], end);
      if (--pending_[at(s)] == 0) ready_.push({ready_at_[at(s)], rank_[at(s)]});
    }
  }

  void sort_order() {
    result_.sends_first = true;
    result_.order.resize(tasks_);
    std::iota(result_.order.begin(), result_.order.end(), 0);
    std::sort(result_.order.begin(), result_.order.end(), [&](int32_t a, int32_t b) {
      return std::tuple(result_.sub_pipeline[at(a)], start_[at(a)], a) <
             std::tuple(result_.sub_pipeline[at(b)], start_[at(b)], b);
    });
  }

  const TaskGraph& graph_;
  const size_t tasks_;
  Pipeline result_;
  int64_t now_ = 0;
  std::vector<int32_t> first_successor_, successors_;
  std::vector<int32_t> rank_, by_rank_;
  std::vector<int32_t> pending_;           // of each task: predecessors that have not started
  std::vector<int64_t> ready_at_, start_;  // of each task
  std::vector<MinHeap<int32_t>> waiting_;  // by link: ranks
  std::vector<int64_t> free_at_;           // by link
  std::vector<int32_t> next_place_;        // by link: the sub-pipeline after its last
  MinHeap<Moment> ready_;                  // ranks
  MinHeap<Moment> idle_;                   // links
  MinHeap<Turn> turns_;                    // idle links that may have something to start
};

}  // namespace

Pipeline schedule_by_critical_path(const TaskGraph& graph) { return CriticalPath(graph).run(); }

}  // namespace theseus
