#include "compiler/hpds.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace theseus {
namespace {

// Ready tasks wait at a link: each at one of its own, the one that was last seen in its way. A sub-pipeline gives each
// link to one task, so it looks only at the heads of links that are still free, in the order of the chunks' priority.
// What it finds blocked by another link goes to wait there. So nothing is looked at twice in one sub-pipeline, and
// whoever waits behind a busy link is not looked at at all.
//
// A key is use << 32 | task. Tasks are numbered chunk by chunk, so keys order as (use of the chunk, chunk, task).
using Key = uint64_t;

class Hpds {
 public:
  explicit Hpds(const TaskGraph& graph)
      : graph_(graph),
        tasks_(static_cast<size_t>(graph.size())),
        pending_(tasks_),
        barred_(tasks_, -1),
        next_(tasks_, -1),
        waiting_(graph.links.size()),
        busy_(graph.links.size(), -1),
        use_(static_cast<size_t>(graph.space.chunks()), 0),
        used_(static_cast<size_t>(graph.space.chunks()), -1) {
    result_.sub_pipeline.assign(tasks_, -1);
    result_.order.reserve(tasks_);
    find_successors();
  }

  Pipeline run() {
    for (size_t t = 0; t < tasks_; ++t) {
      if (pending_[t] == 0) wait(static_cast<int32_t>(t), first_link(static_cast<int32_t>(t)));
    }
    while (result_.order.size() < tasks_) fill_sub_pipeline();
    result_.count = now_;
    return std::move(result_);
  }

 private:
  // Tasks of one chunk that wait at a link, in a list along next_; its key is that of the first.
  struct Queue {
    std::vector<Key> heads;  // a heap, the smallest on top
    int32_t last = -1;       // the end of the list that was last added to; -1: unknown
    bool listed = false;     // in links_
  };
  struct Turn {
    Key key;
    int32_t link;
    bool operator>(const Turn& other) const { return key != other.key ? key > other.key : link > other.link; }
  };

  static int32_t task_of(Key key) { return static_cast<int32_t>(key & 0xffffffffu); }
  size_t chunk_of(int32_t task) const { return static_cast<size_t>(graph_.chunk_of(task)); }
  Key key_of(int32_t task) const { return Key{use_[chunk_of(task)]} << 32 | static_cast<uint32_t>(task); }
  int32_t first_link(int32_t task) const { return graph_.links_of(task)[0]; }
  Queue& queue(int32_t link) { return waiting_[static_cast<size_t>(link)]; }

  void find_successors() {
    first_successor_.assign(tasks_ + 1, 0);
    for (const int32_t p : graph_.predecessors) ++first_successor_[static_cast<size_t>(p) + 1];
    for (size_t t = 0; t < tasks_; ++t) first_successor_[t + 1] += first_successor_[t];
    successors_.resize(graph_.predecessors.size());
    std::vector<int32_t> next(first_successor_.begin(), first_successor_.end() - 1);
    for (size_t t = 0; t < tasks_; ++t) {
      const auto predecessors = graph_.predecessors_of(static_cast<int32_t>(t));
      pending_[t] = static_cast<int32_t>(predecessors.size());
      for (const int32_t p : predecessors) {
        successors_[static_cast<size_t>(next[static_cast<size_t>(p)]++)] = static_cast<int32_t>(t);
      }
    }
  }

  void fill_sub_pipeline() {
    turns_.clear();
    std::erase_if(links_, [&](int32_t link) {
      Queue& q = queue(link);
      q.listed = !q.heads.empty();
      if (q.listed) turns_.push_back({q.heads[0], link});
      return !q.listed;
    });
    std::make_heap(turns_.begin(), turns_.end(), std::greater<>());
    while (!turns_.empty()) {
      std::pop_heap(turns_.begin(), turns_.end(), std::greater<>());
      const Turn turn = turns_.back();
      turns_.pop_back();
      const Queue& q = queue(turn.link);
      // Else the link has got another head, which has a turn of its own.
      const bool is_head = !q.heads.empty() && q.heads[0] == turn.key;
      if (is_head && busy_[static_cast<size_t>(turn.link)] != now_) look_at(turn.link);
    }
    for (const int32_t chunk : used_now_) ++use_[static_cast<size_t>(chunk)];
    used_now_.clear();
    ++now_;
    for (const int32_t task : std::exchange(deferred_, {})) wait(task, first_link(task));
  }

  // The head of a free link: places it, or sends it to wait where it is blocked.
  void look_at(int32_t link) {
    Queue& q = queue(link);
    const int32_t task = task_of(q.heads[0]);
    const Key key = key_of(task);
    if (key != q.heads[0]) {  // its chunk was used since it came here
      replace_head(q, key);
      return take_turn(link);
    }
    const auto links = graph_.links_of(task);
    const auto blocked =
        std::find_if(links.begin(), links.end(), [&](int32_t l) { return busy_[static_cast<size_t>(l)] == now_; });
    remove_head(q);
    if (blocked != links.end()) {
      wait(task, *blocked);
      return take_turn(link);
    }
    place(task);
  }

  void take_turn(int32_t link) {
    if (queue(link).heads.empty()) return;
    turns_.push_back({queue(link).heads[0], link});
    std::push_heap(turns_.begin(), turns_.end(), std::greater<>());
  }

  void replace_head(Queue& q, Key key) {
    std::pop_heap(q.heads.begin(), q.heads.end(), std::greater<>());
    q.heads.back() = key;
    std::push_heap(q.heads.begin(), q.heads.end(), std::greater<>());
  }

  void remove_head(Queue& q) {
    const int32_t task = task_of(q.heads[0]);
    const int32_t next = std::exchange(next_[static_cast<size_t>(task)], -1);
    if (q.last == task) q.last = -1;
    if (next >= 0) return replace_head(q, key_of(next));
    std::pop_heap(q.heads.begin(), q.heads.end(), std::greater<>());
    q.heads.pop_back();
  }

  void wait(int32_t task, int32_t link) {
    Queue& q = queue(link);
    if (!q.listed) {
      q.listed = true;
      links_.push_back(link);
    }
    if (q.last >= 0 && q.last < task && chunk_of(q.last) == chunk_of(task)) {
      next_[static_cast<size_t>(q.last)] = task;
    } else {
      q.heads.push_back(key_of(task));
      std::push_heap(q.heads.begin(), q.heads.end(), std::greater<>());
    }
    q.last = task;
  }

  void place(int32_t task) {
    const auto index = static_cast<size_t>(task);
    result_.sub_pipeline[index] = now_;
    result_.order.push_back(task);
    for (const int32_t link : graph_.links_of(task)) busy_[static_cast<size_t>(link)] = now_;
    const size_t chunk = chunk_of(task);
    if (std::exchange(used_[chunk], now_) != now_) used_now_.push_back(static_cast<int32_t>(chunk));
    for (int32_t s = first_successor_[index]; s < first_successor_[index + 1]; ++s)
      release(successors_[static_cast<size_t>(s)], task);
  }

  void release(int32_t task, int32_t placed) {
    const auto index = static_cast<size_t>(task);
    const bool waits_long = graph_.between_hosts[index] == 0 && graph_.between_hosts[static_cast<size_t>(placed)] != 0;
    if (waits_long) barred_[index] = now_;
    if (--pending_[index] > 0) return;
    if (barred_[index] == now_) {
      deferred_.push_back(task);
      return;
    }
    const int32_t link = first_link(task);
    wait(task, link);
    if (busy_[static_cast<size_t>(link)] != now_) take_turn(link);
  }

  const TaskGraph& graph_;
  const size_t tasks_;
  Pipeline result_;
  int32_t now_ = 0;  // the sub-pipeline at hand
  std::vector<int32_t> first_successor_, successors_;
  std::vector<int32_t> pending_;  // of each task: predecessors not yet placed
  std::vector<int32_t> barred_;   // of each task: the sub-pipeline that it must not join
  std::vector<int32_t> next_;     // of each waiting task: the next of its list
  std::vector<Queue> waiting_;    // by link
  std::vector<int32_t> links_;    // those where somebody waits, and some where nobody does any more
  std::vector<int32_t> busy_;     // by link: the last sub-pipeline that used it
  std::vector<uint32_t> use_;     // by chunk: sub-pipelines that it added tasks to
  std::vector<int32_t> used_;     // by chunk: the last of these
  std::vector<int32_t> used_now_;
  std::vector<int32_t> deferred_;
  std::vector<Turn> turns_;  // a heap of links that may have something to add
};

}  // namespace

Pipeline schedule_hpds(const TaskGraph& graph) { return Hpds(graph).run(); }

}  // namespace theseus
