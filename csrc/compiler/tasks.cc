#include "compiler/tasks.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "compiler/exchange.h"
#include "compiler/transfers.h"

namespace theseus {
namespace {

// Numbers links in the order in which they are first used.
class LinkNumbers {
 public:
  LinkNumbers(const Topology& topology, std::vector<Link>& links)
      : host_(topology.host_of_rank.size()), rails_(topology.rails), links_(links) {
    const auto hosts = ranks_by_host(topology);
    for (size_t h = 0; h < hosts.size(); ++h) {
      for (const int rank : hosts[h]) host_[static_cast<size_t>(rank)] = static_cast<int32_t>(h);
    }
  }
  bool same_host(const Transfer& t) const { return host(t.src) == host(t.dst); }
  int32_t pair(const Transfer& t) { return number({Link::Kind::Pair, t.src, t.dst, 0}); }
  int32_t egress(const Transfer& t) { return number({Link::Kind::Egress, host(t.src), -1, t.rail}); }
  int32_t ingress(const Transfer& t) { return number({Link::Kind::Ingress, -1, host(t.dst), t.rail}); }

 private:
  int32_t host(int rank) const { return host_[static_cast<size_t>(rank)]; }
  int32_t number(const Link& link) {
    const auto ranks = static_cast<uint64_t>(host_.size()) + 1;
    const uint64_t ends = static_cast<uint64_t>(link.from + 1) * ranks + static_cast<uint64_t>(link.to + 1);
    const uint64_t key = (ends * static_cast<uint64_t>(rails_) + static_cast<uint64_t>(link.rail)) * 3 +
                         static_cast<uint64_t>(link.kind);
    const auto [known, is_new] = ids_.try_emplace(key, static_cast<int32_t>(links_.size()));
    if (is_new) links_.push_back(link);
    return known->second;
  }

  std::vector<int32_t> host_;  // by rank
  int rails_;
  std::vector<Link>& links_;
  std::unordered_map<uint64_t, int32_t> ids_;  // only looked up, never walked
};

class TaskBuilder {
 public:
  TaskBuilder(ChunkedTransfers grouped, const Topology& topology, bool fold)
      : first_(std::move(grouped.first)),
        links_(topology, graph_.links),
        exchange_(grouped.space.ranks),
        held_(static_cast<size_t>(grouped.space.ranks)) {
    graph_.space = grouped.space;
    graph_.rails = grouped.rails;
    graph_.fold = fold;
    graph_.several_hosts = grouped.several_hosts;
    graph_.transfers = std::move(grouped.transfers);
    graph_.ends.resize(graph_.transfers.size());
  }

  Result<TaskGraph> run() {
    graph_.first_predecessor.push_back(0);
    graph_.first_link.push_back(0);
    for (int chunk = 0; chunk < graph_.space.chunks(); ++chunk) {
      auto begin = static_cast<size_t>(first_[static_cast<size_t>(chunk)]);
      const auto chunk_end = static_cast<size_t>(first_[static_cast<size_t>(chunk) + 1]);
      if (begin == chunk_end) continue;
      begin_chunk(chunk, begin, chunk_end);
      while (begin < chunk_end) {
        size_t end = begin + 1;
        while (end < chunk_end && at(end).step == at(begin).step) ++end;
        THESEUS_TRY(add_step(begin, end));
        begin = end;
      }
    }
    graph_.first_transfer.push_back(static_cast<int32_t>(graph_.transfers.size()));
    return std::move(graph_);
  }

 private:
  // What a rank holds of the chunk at hand.
  struct Held {
    int32_t lowest = -1;  // lowest rank whose contribution is in it; -1: it holds nothing
    int32_t writer = -1;  // the task that left it; -1: it was there
    Buffer place = Buffer::None;
    std::vector<int32_t> readers;  // tasks that read it since
  };
  // Transfers [begin, end) that arrive at one rank in the step at hand.
  struct Run {
    size_t begin, end;
    bool exchanges;  // it goes together with other runs,
    bool joins;      // the one before it among them
    int32_t lowest;  // of what the rank holds afterwards
  };

  Transfer& at(size_t index) { return graph_.transfers[index]; }
  Held& held(int rank) { return held_[static_cast<size_t>(rank)]; }

  void begin_chunk(int chunk, size_t begin, size_t end) {
    const int owner = graph_.space.owner(chunk);
    target_ = graph_.space.target(chunk);
    const auto reset = [&](int rank) {
      Held& h = held(rank);
      const bool contributes = owner < 0 || owner == rank;
      h.lowest = contributes ? rank : -1;
      h.place = contributes ? Buffer::Input : Buffer::None;
      h.writer = -1;
      h.readers.clear();
    };
    for (size_t i = begin; i < end; ++i) {
      reset(at(i).src);
      reset(at(i).dst);
    }
  }

  Status add_step(size_t begin, size_t end) {
    THESEUS_TRY(check_step(begin, end));
    find_runs(begin, end);
    number_tasks(begin, end);
    for (size_t i = begin; i < end; ++i) {
      auto& readers = held(at(i).src).readers;
      if (readers.empty() || readers.back() != task_of(i)) readers.push_back(task_of(i));
    }
    for (size_t r = 0, i = begin; i < end; ++i) {
      const bool opens_task = i == begin || task_of(i) != task_of(i - 1);
      if (opens_task && i > begin) close_task();
      if (i == runs_[r].end) ++r;
      add_predecessors(i, runs_[r]);
      add_links(at(i), opens_task);
    }
    close_task();
    leave_step();
    return {};
  }

  Status check_step(size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const Transfer& t = at(i);
      if (held(t.src).lowest < 0) {
        return Status::argument(describe(t) + ": rank " + std::to_string(t.src) + " does not hold that chunk yet");
      }
      if (i == begin || at(i - 1).dst != t.dst) continue;
      if (at(i - 1).src == t.src) return Status::argument(describe(t) + " occurs twice");
      if (t.op == TransferOp::Copy || at(i - 1).op == TransferOp::Copy) {
        return Status::argument("chunk " + std::to_string(t.chunk) + " at step " + std::to_string(t.step) + ": rank " +
                                std::to_string(t.dst) +
                                " receives a copy beside another transfer; which one stays is undefined");
      }
    }
    return {};
  }

  // Runs in an order without waits backwards; the transfers of each in the order of reduction.
  void find_runs(size_t begin, size_t end) {
    runs_.clear();
    const Transfer* data = graph_.transfers.data();
    if (exchange_.is_needed(data + begin, data + end)) {
      arrange(begin, end);
    } else {
      add_runs(begin, end, false);
    }
    for (const Run& run : runs_) {
      const auto first = graph_.transfers.begin();
      const auto before = [&](const Transfer& a, const Transfer& b) { return held(a.src).lowest < held(b.src).lowest; };
      if (run.end - run.begin > 1) {
        std::stable_sort(first + static_cast<ptrdiff_t>(run.begin), first + static_cast<ptrdiff_t>(run.end), before);
      }
    }
  }

  void add_runs(size_t begin, size_t end, bool exchanges) {
    for (size_t i = begin; i < end;) {
      size_t next = i + 1;
      while (next < end && at(next).dst == at(i).dst) ++next;
      runs_.push_back({i, next, exchanges, exchanges && i != begin, -1});
      i = next;
    }
  }

  void arrange(size_t begin, size_t end) {
    const auto& groups = exchange_.order(graph_.transfers.data() + begin, graph_.transfers.data() + end);
    const std::vector<Transfer> step(graph_.transfers.begin() + static_cast<ptrdiff_t>(begin),
                                     graph_.transfers.begin() + static_cast<ptrdiff_t>(end));
    const auto by_receiver = [](const Transfer& t, int rank) { return t.dst < rank; };
    size_t next = begin;
    for (const auto& group : groups) {
      const size_t group_begin = next;
      for (const int32_t rank : group.receivers) {
        auto t = std::lower_bound(step.begin(), step.end(), rank, by_receiver);
        for (; t != step.end() && t->dst == rank; ++t) at(next++) = *t;
      }
      const bool exchanges = group.receivers.size() > 1;
      add_runs(group_begin, next, exchanges);
      graph_.exchanges |= exchanges;
    }
  }

  void number_tasks(size_t begin, size_t end) {
    step_begin_ = begin;
    task_of_.assign(end - begin, -1);
    for (Run& run : runs_) {
      run.lowest = lowest_after(run);
      for (size_t i = run.begin; i < run.end; ++i) {
        const bool opens = i == run.begin ? !run.joins : !graph_.fold && !run.exchanges;
        if (opens) graph_.first_transfer.push_back(static_cast<int32_t>(i));
        task_of_[i - begin] = static_cast<int32_t>(graph_.first_transfer.size()) - 1;
        set_ends(run, i);
      }
    }
  }

  int32_t lowest_after(const Run& run) {
    const Held& here = held(at(run.begin).dst);
    const int32_t arriving = held(at(run.begin).src).lowest;  // the lowest, as they are sorted
    const bool combines = at(run.begin).op == TransferOp::Reduce && here.lowest >= 0;
    return combines ? std::min(here.lowest, arriving) : arriving;
  }

  void set_ends(const Run& run, size_t index) {
    const Transfer& t = at(index);
    const Held& here = held(t.dst);
    const bool is_first = index == run.begin;
    TransferEnds& ends = graph_.ends[index];
    ends.src = held(t.src).place;
    ends.dst = target_ < 0 || target_ == t.dst ? Buffer::Output : Buffer::Scratch;
    if (t.op == TransferOp::Copy) return;
    if (graph_.fold || is_first) {
      ends.local = here.place;
      const bool follows = here.lowest < held(t.src).lowest;
      ends.local_before =
          here.lowest >= 0 && follows && (is_first || !graph_.fold || held(at(index - 1).src).lowest <= here.lowest);
    } else {
      ends.local = ends.dst;
      const int32_t so_far =
          here.lowest < 0 ? held(at(run.begin).src).lowest : std::min(here.lowest, held(at(run.begin).src).lowest);
      ends.local_before = so_far < held(t.src).lowest;
    }
  }

  int32_t task_of(size_t index) const { return task_of_[index - step_begin_]; }

  void add_predecessors(size_t index, const Run& run) {
    const int32_t task = task_of(index);
    depend(task, held(at(index).src).writer);
    if (index > run.begin) {
      if (task_of(index - 1) != task) depend(task, task_of(index - 1));
      return;
    }
    const Held& here = held(at(index).dst);
    for (const int32_t reader : here.readers) depend(task, reader);
    if (here.readers.empty()) depend(task, here.writer);
  }

  void depend(int32_t task, int32_t on) {
    if (on < 0 || on == task) return;
    if (marks_.size() <= static_cast<size_t>(on)) marks_.resize(static_cast<size_t>(on) * 2 + 16, -1);
    if (std::exchange(marks_[static_cast<size_t>(on)], task) == task) return;
    graph_.predecessors.push_back(on);
  }

  void add_links(const Transfer& t, bool opens_task) {
    if (opens_task) graph_.between_hosts.push_back(0);
    if (links_.same_host(t)) return add_link(links_.pair(t));
    graph_.between_hosts.back() = 1;
    add_link(links_.egress(t));
    add_link(links_.ingress(t));
  }

  void add_link(int32_t link) {
    if (link_marks_.size() < graph_.links.size()) link_marks_.resize(graph_.links.size(), -1);
    const int32_t task = graph_.size() - 1;
    if (std::exchange(link_marks_[static_cast<size_t>(link)], task) != task) graph_.link_ids.push_back(link);
  }

  void close_task() {
    graph_.first_predecessor.push_back(static_cast<int32_t>(graph_.predecessors.size()));
    graph_.first_link.push_back(static_cast<int32_t>(graph_.link_ids.size()));
  }

  void leave_step() {
    for (const Run& run : runs_) {
      Held& here = held(at(run.begin).dst);
      here.lowest = run.lowest;
      here.writer = task_of(run.end - 1);
      here.place = graph_.ends[run.begin].dst;
      here.readers.clear();
    }
  }

  TaskGraph graph_;
  std::vector<int32_t> first_;
  LinkNumbers links_;
  ExchangeOrder exchange_;
  std::vector<Held> held_;
  int target_ = -1;
  std::vector<Run> runs_;
  size_t step_begin_ = 0;
  std::vector<int32_t> task_of_;     // of each transfer of the step at hand
  std::vector<int32_t> marks_;       // by task: the last that depends on it
  std::vector<int32_t> link_marks_;  // by link: the last task that uses it
};

}  // namespace

Result<TaskGraph> build_tasks(const Algorithm& algorithm, const Topology& topology, bool fold) {
  auto grouped = chunk_transfers(algorithm, topology);
  if (!grouped.ok()) return grouped.status();
  auto graph = TaskBuilder(std::move(*grouped), topology, fold).run();
  if (!graph.ok()) return Status::argument("algorithm '" + algorithm.name + "', " + graph.status().message());
  return graph;
}

}  // namespace theseus
