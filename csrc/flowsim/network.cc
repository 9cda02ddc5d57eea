#include "flowsim/network.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace theseus::flowsim {

namespace {

constexpr size_t kMost = std::numeric_limits<int32_t>::max() - 1;

std::string text(double value) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%g", value);
  return digits;
}

bool is_amount(double value) { return std::isfinite(value) && value >= 0; }

Status no_amount(const std::string& what, const char* quantity, double value) {
  return Status::argument(what + ": " + quantity + " is " + text(value) + ", not a finite number of at least 0");
}

// A walk backwards along unfinished predecessors must come back to where it has been.
Status name_cycle(const Network& network, const std::vector<int32_t>& left) {
  const int32_t count = network.activities();
  std::vector<int32_t> waits_for(count, -1);
  for (const Dependency& each : network.dependencies()) {
    if (left[each.before] > 0 && left[each.after] > 0) waits_for[each.after] = each.before;
  }
  int32_t at = 0;
  while (left[at] == 0 || waits_for[at] < 0) ++at;
  std::vector<bool> seen(count, false);
  for (; !seen[at]; at = waits_for[at]) seen[at] = true;
  std::string cycle = network.name(at);
  int shown = 0;
  for (int32_t next = waits_for[at]; next != at && shown < 8; next = waits_for[next], ++shown) {
    cycle += " after " + network.name(next);
  }
  return Status::argument("dependencies form a cycle: " + cycle + (shown == 8 ? " after ..." : "") + " after " +
                          network.name(at));
}

}  // namespace

std::string Network::name(int32_t id) const {
  return (activities_[id].is_flow ? "flow " : "task ") + std::to_string(id);
}

Result<int32_t> Network::add_link(double capacity, double contention) {
  const std::string what = "link " + std::to_string(links_.size());
  if (links_.size() >= kMost) return Status::argument(what + ": a network holds at most 2^31 - 2 links");
  if (!is_amount(capacity)) return no_amount(what, "capacity", capacity);
  if (!is_amount(contention)) return no_amount(what, "contention", contention);
  links_.push_back({capacity, contention});
  return links() - 1;
}

Status Network::check_activity(const std::string& what, double amount, double start, int32_t priority) const {
  if (activities_.size() >= kMost) return Status::argument(what + ": a network holds at most 2^31 - 2 activities");
  if (!is_amount(amount)) return no_amount(what, what.starts_with("flow") ? "size" : "duration", amount);
  if (!is_amount(start)) return no_amount(what, "start", start);
  if (priority < 0 || priority >= kPriorities) {
    return Status::argument(what + ": priority " + std::to_string(priority) + " is not from 0 (first) to " +
                            std::to_string(kPriorities - 1));
  }
  return {};
}

Status Network::check_path(const std::string& what, std::span<const int32_t> path) const {
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] < 0 || path[i] >= links()) {
      return Status::argument(what + ": there is no link " + std::to_string(path[i]) + "; the network has " +
                              std::to_string(links()));
    }
  }
  std::vector<int32_t> sorted(path.begin(), path.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    return Status::argument(what + ": link " + std::to_string(*twice) + " is twice in its path");
  }
  return {};
}

Status Network::check_after(const std::string& what, std::span<const int32_t> after) const {
  for (const int32_t id : after) {
    if (id >= 0 && id < activities()) continue;
    return Status::argument(what + ": cannot come after activity " + std::to_string(id) + "; the network has " +
                            std::to_string(activities()) + " so far");
  }
  return {};
}

int32_t Network::append(const Activity& activity, std::span<const int32_t> path, std::span<const int32_t> after) {
  const int32_t id = activities();
  activities_.push_back(activity);
  path_links_.insert(path_links_.end(), path.begin(), path.end());
  path_ends_.push_back(static_cast<int64_t>(path_links_.size()));
  for (const int32_t before : after) dependencies_.push_back({before, id});
  return id;
}

void Network::back_to(const Mark& mark) {
  activities_.resize(mark.activities);
  dependencies_.resize(mark.dependencies);
  path_ends_.resize(mark.activities + 1);
  path_links_.resize(path_ends_.back());
}

Result<int32_t> Network::add_flow(const Flow& flow, std::span<const int32_t> path, std::span<const int32_t> after) {
  const std::string what = "flow " + std::to_string(activities_.size());
  THESEUS_TRY(check_activity(what, flow.size, flow.start, flow.priority));
  if (!is_amount(flow.latency)) return no_amount(what, "latency", flow.latency);
  if (!std::isfinite(flow.weight) || flow.weight <= 0) {
    return Status::argument(what + ": weight is " + text(flow.weight) + ", not a finite number above 0");
  }
  THESEUS_TRY(check_path(what, path));
  THESEUS_TRY(check_after(what, after));
  return append({true, flow.priority, kNoExecutor, flow.size, flow.weight, flow.start, flow.latency}, path, after);
}

Result<int32_t> Network::add_task(const Task& task, std::span<const int32_t> after) {
  const std::string what = "task " + std::to_string(activities_.size());
  THESEUS_TRY(check_activity(what, task.duration, task.start, task.priority));
  if (task.executor != kNoExecutor && (task.executor < 0 || task.executor >= executors_)) {
    return Status::argument(what + ": there is no executor " + std::to_string(task.executor) + "; the network has " +
                            std::to_string(executors_));
  }
  THESEUS_TRY(check_after(what, after));
  return append({false, task.priority, task.executor, task.duration, 1, task.start, 0}, {}, after);
}

Status Network::add_dependency(int32_t before, int32_t after) {
  for (const int32_t id : {before, after}) {
    if (id < 0 || id >= activities()) {
      return Status::argument("dependency of " + std::to_string(after) + " on " + std::to_string(before) +
                              ": there is no activity " + std::to_string(id) + "; the network has " +
                              std::to_string(activities()));
    }
  }
  dependencies_.push_back({before, after});
  return {};
}

Status Network::change_capacity(int32_t link, double time, double capacity) {
  const std::string what = "capacity change of link " + std::to_string(link);
  if (link < 0 || link >= links()) {
    return Status::argument(what + ": there is no such link; the network has " + std::to_string(links()));
  }
  if (!is_amount(time)) return no_amount(what, "time", time);
  if (!is_amount(capacity)) return no_amount(what, "capacity", capacity);
  changes_.push_back({time, link, capacity});
  return {};
}

Result<Graph> build_graph(const Network& network) {
  const int32_t count = network.activities();
  Graph graph{std::vector<int64_t>(count + 1, 0), {}, std::vector<int32_t>(count, 0)};
  for (const Dependency& each : network.dependencies()) {
    ++graph.ends[each.before + 1];
    ++graph.predecessors[each.after];
  }
  for (int32_t i = 0; i < count; ++i) graph.ends[i + 1] += graph.ends[i];
  graph.successors.resize(network.dependencies().size());
  std::vector<int64_t> next(graph.ends.begin(), graph.ends.end() - 1);
  for (const Dependency& each : network.dependencies()) graph.successors[next[each.before]++] = each.after;

  std::vector<int32_t> left = graph.predecessors;
  std::vector<int32_t> free;
  for (int32_t i = 0; i < count; ++i) {
    if (left[i] == 0) free.push_back(i);
  }
  for (size_t i = 0; i < free.size(); ++i) {
    for (int64_t at = graph.ends[free[i]]; at < graph.ends[free[i] + 1]; ++at) {
      if (--left[graph.successors[at]] == 0) free.push_back(graph.successors[at]);
    }
  }
  if (free.size() != static_cast<size_t>(count)) return name_cycle(network, left);
  return graph;
}

}  // namespace theseus::flowsim
