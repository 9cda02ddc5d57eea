// What is simulated: links, executors, and activities (flows over links, tasks on executors) that wait for each other.
//
// Units are the caller's: bytes and seconds in this text. Activities share one id space, in the order they were added,
// so that either kind may wait for either.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace theseus::flowsim {

inline constexpr int32_t kPriorities = 256;
// A task without an executor runs as soon as it may, beside any others.
inline constexpr int32_t kNoExecutor = -1;

// Moves `size` bytes over all links of its path at once, after `latency` seconds in which it moves none.
// Priority 0 goes first; `weight` is its share among flows of its priority.
struct Flow {
  double size = 0;
  int32_t priority = 0;
  double weight = 1;
  double start = 0;  // not before
  double latency = 0;
};

// Holds its executor for `duration` seconds. Of the tasks that could start, an executor takes the lowest priority
// number, then the one that has been ready for longest, then the lowest id.
struct Task {
  double duration = 0;
  int32_t executor = kNoExecutor;
  int32_t priority = 0;
  double start = 0;  // not before
};

struct CapacityChange {
  double time;
  int32_t link;
  double capacity;
};

// Read by the engine, grown by the functions of Network. Everything in it has been checked.
struct Activity {
  bool is_flow;
  int32_t priority;
  int32_t executor;
  double amount;  // bytes, or seconds of a task
  double weight;
  double start;
  double latency;
};

struct Link {
  double capacity;    // bytes a second
  double contention;  // with n flows on it, the link is worth capacity / (1 + contention * (n - 1))
};

struct Dependency {
  int32_t before;
  int32_t after;
};

// Each function that adds returns the new id, or says what is wrong and adds nothing. What an activity comes `after`
// must be there already; it starts when all of that has finished.
class Network {
 public:
  Result<int32_t> add_link(double capacity, double contention = 0);
  int32_t add_executor() { return executors_++; }
  Result<int32_t> add_flow(const Flow& flow, std::span<const int32_t> path, std::span<const int32_t> after = {});
  Result<int32_t> add_task(const Task& task, std::span<const int32_t> after = {});
  // Between activities in any order. Cycles are found by the engine.
  Status add_dependency(int32_t before, int32_t after);
  // From `time` on; changes may be given in any order, of one link at one time the last one given holds.
  Status change_capacity(int32_t link, double time, double capacity);

  int32_t links() const { return static_cast<int32_t>(links_.size()); }
  int32_t executors() const { return executors_; }
  int32_t activities() const { return static_cast<int32_t>(activities_.size()); }
  const Link& link(int32_t id) const { return links_[id]; }
  const Activity& activity(int32_t id) const { return activities_[id]; }
  std::span<const int32_t> path(int32_t id) const {
    return {path_links_.data() + path_ends_[id], path_links_.data() + path_ends_[id + 1]};
  }
  const std::vector<Dependency>& dependencies() const { return dependencies_; }
  const std::vector<CapacityChange>& changes() const { return changes_; }
  // Where the network stands, to go back to if the next of several additions fails.
  struct Mark {
    size_t activities;
    size_t dependencies;
  };
  Mark mark() const { return {activities_.size(), dependencies_.size()}; }
  void back_to(const Mark& mark);
  // "flow 3" or "task 3"
  std::string name(int32_t id) const;

 private:
  Status check_activity(const std::string& what, double amount, double start, int32_t priority) const;
  Status check_after(const std::string& what, std::span<const int32_t> after) const;
  int32_t append(const Activity& activity, std::span<const int32_t> path, std::span<const int32_t> after);
  Status check_path(const std::string& what, std::span<const int32_t> path) const;

  std::vector<Link> links_;
  int32_t executors_ = 0;
  std::vector<Activity> activities_;
  std::vector<int64_t> path_ends_ = {0};
  std::vector<int32_t> path_links_;
  std::vector<Dependency> dependencies_;
  std::vector<CapacityChange> changes_;
};

// The successors of each activity, and how many predecessors each has.
struct Graph {
  std::vector<int64_t> ends;  // those of i: successors[ends[i]] to successors[ends[i + 1]]
  std::vector<int32_t> successors;
  std::vector<int32_t> predecessors;
};

// InvalidArgument, naming a cycle, where activities wait for each other.
Result<Graph> build_graph(const Network& network);

}  // namespace theseus::flowsim
