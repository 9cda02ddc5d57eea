#include "flowsim/engine.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>

namespace theseus::flowsim {

Result<Engine> Engine::create(const Network& network, const Options& options) {
  if (std::isnan(options.until) || options.until < 0) {
    return Status::argument("until is no time of at least 0");
  }
  Result<Graph> graph = build_graph(network);
  if (!graph.ok()) return graph.status();
  return Engine(network, options, std::move(graph).value());
}

Engine::Engine(const Network& network, const Options& options, Graph graph)
    : network_(&network),
      options_(options),
      graph_(std::move(graph)),
      fair_(network),
      queue_(network.activities()),
      changes_(network.changes()),
      states_(network.activities(), State::Waiting),
      ready_(network.activities(), 0),
      moving_(network.activities()),
      flows_on_(network.links(), 0),
      busy_since_(network.links(), 0),
      offered_since_(network.links(), 0),
      executors_(network.executors()),
      unfinished_(network.activities()) {
  // The last change given for one instant holds, so equal times keep their order.
  std::stable_sort(changes_.begin(), changes_.end(),
                   [](const CapacityChange& one, const CapacityChange& other) { return one.time < other.time; });
  outcome_.start.assign(network.activities(), kNever);
  outcome_.finish.assign(network.activities(), kNever);
  outcome_.moved.assign(network.activities(), 0);
  outcome_.link_bytes.assign(network.links(), 0);
  outcome_.link_busy.assign(network.links(), 0);
  outcome_.link_offered.assign(network.links(), 0);
  outcome_.executor_busy.assign(network.executors(), 0);
  for (int32_t id = 0; id < network.activities(); ++id) {
    moving_[id].left = network.activity(id).amount;
    if (graph_.predecessors[id] == 0) release(id);
  }
}

Status Engine::advance(int64_t steps) {
  const int64_t goal = outcome_.instants + outcome_.rate_changes + steps;
  while (!done_ && outcome_.instants + outcome_.rate_changes < goal) {
    const double next_change = next_change_ < changes_.size() ? changes_[next_change_].time : kNever;
    const double next_event = queue_.empty() ? kNever : queue_.time();
    const double next = std::min(next_change, next_event);
    if (unfinished_ == 0 || next > options_.until) {
      close();
    } else if (next == kNever) {
      return starved();
    } else {
      now_ = std::max(now_, next);
      run_instant();
    }
  }
  return {};
}

void Engine::run_instant() {
  ++outcome_.instants;
  const double limit = now_ + kSameInstant * now_;
  change_capacities(limit);
  // What starts may end in the same instant, and let others start.
  while (!queue_.empty() && queue_.time() <= limit) {
    while (!queue_.empty() && queue_.time() <= limit) step(queue_.pop());
    dispatch();
  }
  share();
}

void Engine::change_capacities(double limit) {
  for (; next_change_ < changes_.size() && changes_[next_change_].time <= limit; ++next_change_) {
    const CapacityChange& change = changes_[next_change_];
    outcome_.link_offered[change.link] += fair_.capacity(change.link) * (now_ - offered_since_[change.link]);
    offered_since_[change.link] = now_;
    fair_.set_capacity(change.link, change.capacity);
  }
}

// An activity has one event at a time; its state says which.
void Engine::step(int32_t id) {
  switch (states_[id]) {
    case State::Waiting: return begin(id);
    case State::Latent: return move(id);
    case State::Moving:
    case State::Running: return finish(id);
    case State::Queued:
    case State::Finished: return;
  }
}

void Engine::begin(int32_t id) {
  const Activity& activity = network_->activity(id);
  if (activity.is_flow) {
    outcome_.start[id] = now_;
    if (activity.latency <= 0) return move(id);
    states_[id] = State::Latent;
    queue_.set(id, now_ + activity.latency);
  } else if (activity.executor == kNoExecutor) {
    outcome_.start[id] = now_;
    states_[id] = State::Running;
    queue_.set(id, now_ + activity.amount);
  } else {
    states_[id] = State::Queued;
    ready_[id] = now_;
    std::vector<int32_t>& queue = executors_[activity.executor].queue;
    queue.push_back(id);
    std::push_heap(queue.begin(), queue.end(), [this](int32_t a, int32_t b) { return runs_later(a, b); });
    ask(activity.executor);
  }
}

// A flow of no bytes, or over no link, takes its latency and no more.
bool Engine::shares(int32_t id) const { return network_->activity(id).amount > 0 && !network_->path(id).empty(); }

void Engine::move(int32_t id) {
  states_[id] = State::Moving;
  moving_[id].since = now_;
  if (!shares(id)) return finish(id);
  fair_.add(id);
}

void Engine::finish(int32_t id) {
  const Activity& activity = network_->activity(id);
  if (activity.is_flow) {
    if (shares(id)) {
      set_rate(id, 0);
      fair_.remove(id);
    }
    // Whatever rounding left over.
    moving_[id].left = 0;
  } else if (activity.executor != kNoExecutor) {
    executors_[activity.executor].running = -1;
    outcome_.executor_busy[activity.executor] += now_ - outcome_.start[id];
    ask(activity.executor);
  }
  states_[id] = State::Finished;
  outcome_.finish[id] = now_;
  outcome_.end = now_;
  --unfinished_;
  for (int64_t at = graph_.ends[id]; at < graph_.ends[id + 1]; ++at) {
    const int32_t successor = graph_.successors[at];
    if (--graph_.predecessors[successor] == 0) release(successor);
  }
}

void Engine::release(int32_t id) { queue_.set(id, std::max(now_, network_->activity(id).start)); }

bool Engine::runs_later(int32_t one, int32_t other) const {
  const int32_t mine = network_->activity(one).priority;
  const int32_t its = network_->activity(other).priority;
  if (mine != its) return mine > its;
  return ready_[one] != ready_[other] ? ready_[one] > ready_[other] : one > other;
}

void Engine::ask(int32_t executor) {
  if (executors_[executor].asked) return;
  executors_[executor].asked = true;
  asked_.push_back(executor);
}

// Gives free executors their next task. Only once all that are ready at this instant have queued: priority decides.
void Engine::dispatch() {
  for (const int32_t id : asked_) {
    Executor& executor = executors_[id];
    executor.asked = false;
    if (executor.running >= 0 || executor.queue.empty()) continue;
    std::pop_heap(executor.queue.begin(), executor.queue.end(),
                  [this](int32_t a, int32_t b) { return runs_later(a, b); });
    const int32_t task = executor.queue.back();
    executor.queue.pop_back();
    executor.running = task;
    outcome_.start[task] = now_;
    states_[task] = State::Running;
    queue_.set(task, now_ + network_->activity(task).amount);
  }
  asked_.clear();
}

void Engine::share() {
  changed_.clear();
  fair_.settle(changed_);
  for (const int32_t id : changed_) {
    set_rate(id, fair_.rate(id));
    const Moving& moving = moving_[id];
    const double finish = moving.rate > 0 ? now_ + moving.left / moving.rate : kNever;
    if (std::isfinite(finish)) {
      queue_.set(id, finish);
    } else {
      queue_.remove(id);
    }
  }
}

void Engine::set_rate(int32_t id, double rate) {
  Moving& moving = moving_[id];
  const double moved = std::min(moving.left, moving.rate * (now_ - moving.since));
  moving.left -= moved;
  moving.since = now_;
  const bool starts = moving.rate <= 0 && rate > 0;
  const bool stops = moving.rate > 0 && rate <= 0;
  moving.rate = rate;
  ++outcome_.rate_changes;
  if (options_.timeline) outcome_.timeline.push_back({now_, id, rate});
  if (!starts && !stops) return;
  for (const int32_t link : network_->path(id)) {
    if (starts && flows_on_[link]++ == 0) busy_since_[link] = now_;
    if (stops && --flows_on_[link] == 0) outcome_.link_busy[link] += now_ - busy_since_[link];
  }
}

void Engine::close() {
  done_ = true;
  if (unfinished_ > 0) now_ = outcome_.end = std::max(now_, options_.until);
  for (int32_t id = 0; id < network_->activities(); ++id) {
    const Activity& activity = network_->activity(id);
    if (!activity.is_flow) {
      const bool runs = states_[id] == State::Running && activity.executor != kNoExecutor;
      if (runs) outcome_.executor_busy[activity.executor] += now_ - outcome_.start[id];
      continue;
    }
    if (moving_[id].rate > 0) set_rate(id, 0);
    outcome_.moved[id] = activity.amount - moving_[id].left;
    for (const int32_t link : network_->path(id)) outcome_.link_bytes[link] += outcome_.moved[id];
  }
  for (int32_t link = 0; link < network_->links(); ++link) {
    outcome_.link_offered[link] += fair_.capacity(link) * (outcome_.end - offered_since_[link]);
  }
}

// Nothing will ever happen again, yet something is unfinished: some flow has no rate, and all else waits for such
// flows.
Status Engine::starved() const {
  for (int32_t id = 0; id < network_->activities(); ++id) {
    if (states_[id] != State::Moving) continue;
    const int32_t link = fair_.bottleneck(id);
    char text[160];
    std::snprintf(text, sizeof text, " is starved: from %g s on, with %g of %g bytes left, link %d gives it nothing",
                  now_, moving_[id].left, network_->activity(id).amount, link);
    return Status::argument(network_->name(id) + text + ", and no capacity change follows");
  }
  return Status::internal("flowsim: nothing is starved, yet nothing goes on");
}

Outcome Engine::take_outcome() { return std::move(outcome_); }

}  // namespace theseus::flowsim
