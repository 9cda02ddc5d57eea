// The event loop: from what is to be done (Network) to when it was done (Outcome). No clock, no threads, no randomness:
// the same network gives the same bits.
//
// Tolerance: events within 1e-12 of the present time, relatively, happen at one instant (kSameInstant). So a coflow
// whose flows end together, but for rounding, is one event, and an event too near to advance the time is handled all
// the same: each instant ends or starts something, and there is never an endless row of tiny ones.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "base/result.h"
#include "flowsim/event_queue.h"
#include "flowsim/fair_share.h"
#include "flowsim/network.h"

namespace theseus::flowsim {

inline constexpr double kSameInstant = 1e-12;
// What has no time, as it did not come to that before `until`.
inline constexpr double kNever = std::numeric_limits<double>::infinity();

struct Options {
  double until = kNever;  // stop there, whatever is unfinished
  bool timeline = false;  // keep every change of a rate
};

// From `time` on, until its next entry, a flow moves `rate` bytes a second.
struct RateChange {
  double time;
  int32_t flow;
  double rate;
};

struct Outcome {
  // By activity. A flow starts, before its latency, when all it waits for is there; a task when it gets its executor.
  std::vector<double> start;
  std::vector<double> finish;
  std::vector<double> moved;  // bytes; 0 for a task
  // By link.
  std::vector<double> link_bytes;
  std::vector<double> link_busy;     // seconds in which anything moved
  std::vector<double> link_offered;  // bytes it could have moved: capacity over time
  std::vector<double> executor_busy;
  std::vector<RateChange> timeline;
  double end = 0;  // when the last activity finished, or `until`
  int64_t instants = 0;
  int64_t rate_changes = 0;
};

class Engine {
 public:
  // The network must outlive the engine, and must not grow meanwhile.
  static Result<Engine> create(const Network& network, const Options& options = {});

  // Goes on for about so many steps: instants, and flows whose rate changes. InvalidArgument naming the flow if one can
  // never finish (it is starved).
  Status advance(int64_t steps);
  bool done() const { return done_; }
  // Once done.
  Outcome take_outcome();

 private:
  enum class State : uint8_t { Waiting, Queued, Latent, Moving, Running, Finished };
  struct Moving {
    double left = 0;   // bytes at `since`
    double since = 0;  // when `rate` was set
    double rate = 0;
  };
  struct Executor {
    std::vector<int32_t> queue;  // a heap: the task to run next is at the front
    int32_t running = -1;
    bool asked = false;  // it is in asked_
  };

  Engine(const Network& network, const Options& options, Graph graph);

  void run_instant();
  void change_capacities(double limit);
  void step(int32_t id);
  void begin(int32_t id);
  bool shares(int32_t id) const;
  void move(int32_t id);
  void finish(int32_t id);
  void release(int32_t id);
  bool runs_later(int32_t one, int32_t other) const;
  void ask(int32_t executor);
  void dispatch();
  void share();
  void set_rate(int32_t id, double rate);
  void close();
  Status starved() const;

  const Network* network_;
  Options options_;
  Graph graph_;
  FairShare fair_;
  EventQueue queue_;
  std::vector<CapacityChange> changes_;  // by time
  size_t next_change_ = 0;
  std::vector<State> states_;
  std::vector<double> ready_;  // when a task was put in its executor's queue
  std::vector<Moving> moving_;
  std::vector<int32_t> flows_on_;   // of each link: with a rate above 0
  std::vector<double> busy_since_;  // of each link
  std::vector<double> offered_since_;
  std::vector<Executor> executors_;
  std::vector<int32_t> asked_;
  std::vector<int32_t> changed_;
  int32_t unfinished_;
  double now_ = 0;
  bool done_ = false;
  Outcome outcome_;
};

}  // namespace theseus::flowsim
