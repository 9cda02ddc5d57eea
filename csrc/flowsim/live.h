// Flows under somebody else's control: started any number of times, given other priorities while they run, one event
// after the other. For simulations whose next step depends on how the last one came out, as LEVELLER's levels do.
//
// Changes that are made between two events are of one instant; their order does not matter but for the same flow. No
// clock, no threads, no randomness: the same calls give the same bits. Tolerance: as the Engine's (kSameInstant).
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "flowsim/event_queue.h"
#include "flowsim/fair_share.h"
#include "flowsim/network.h"

namespace theseus::flowsim {

class Live {
 public:
  // Of the network, which must outlive this and must not grow meanwhile, this uses links, paths, weights and
  // priorities; what its activities move, and when, does not count. No flow is under way.
  explicit Live(const Network& network);

  // Lets a flow move `bytes` from now on. InvalidArgument: no flow, one that moves, or bytes not above 0.
  Status start(int32_t flow, double bytes);
  // Also of a flow that does not move, for when it does.
  Status set_priority(int32_t flow, int32_t priority);
  Status set_capacity(int32_t link, double capacity);

  double now() const { return now_; }
  // When the next flow will have moved all; infinite if none ever will as things are.
  double next();
  // Lets time pass until `time`, which is not beyond next(); appends the flows that are done by then.
  Status advance(double time, std::vector<int32_t>& finished);

  // Bytes a second.
  double rate(int32_t flow);
  // Bytes that it has still to move; 0 if it does not move.
  double left(int32_t flow) const;

 private:
  struct State {
    double left = 0;  // bytes at `since`
    double since = 0;
    double rate = 0;
    int32_t wanted = 0;  // priority
    bool moves = false;
    bool shares = false;  // fair_ knows of it
    bool touched = false;
  };
  Status check_flow(int32_t flow) const;
  void touch(int32_t flow);
  void settle();
  void stop(int32_t flow);
  void set_rate(int32_t flow, double rate);

  const Network& network_;
  FairShare fair_;
  EventQueue queue_;
  std::vector<State> states_;
  std::vector<int32_t> touched_;
  std::vector<int32_t> changed_;
  bool dirty_ = false;
  double now_ = 0;
};

}  // namespace theseus::flowsim
