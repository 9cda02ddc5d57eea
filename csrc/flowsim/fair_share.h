// The rates of the flows that are under way: strict priority, and weighted max-min fairness inside a priority.
//
// Max-min fairness has one solution, and a flow's rate belongs to it exactly if the flow has a *bottleneck*: a link of
// its path that is full and on which no flow (of the same priority) has more per weight. So a change need not solve the
// whole network: the flows whose bottleneck it broke (the *members*) are filled anew while all others keep their rates,
// and whoever has no bottleneck then becomes a member too, until all have one. Priorities follow one after the other,
// each with the capacity that those before it leave.
//
// Tolerance: bottlenecks are judged to 1e-9 of the capacity at hand (kFairness). What earlier priorities leave of a
// link counts as nothing below 1e-9 of its capacity, so that rounding does not become a rate.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "flowsim/network.h"

namespace theseus::flowsim {

inline constexpr double kFairness = 1e-9;

class FairShare {
 public:
  // The network must outlive this, and must not grow meanwhile.
  explicit FairShare(const Network& network);

  // Changes of one instant are collected; settle() then finds the rates.
  void add(int32_t flow);
  void remove(int32_t flow);
  void set_capacity(int32_t link, double capacity);
  // Of a flow that is not under way.
  void set_priority(int32_t flow, int32_t priority) { flows_[flow].priority = priority; }
  // Appends the flows whose rates changed (none that was removed).
  void settle(std::vector<int32_t>& changed);

  double rate(int32_t flow) const { return flows_[flow].rate; }
  double capacity(int32_t link) const { return links_[link].capacity; }
  // The link that limits a flow under way.
  int32_t bottleneck(int32_t flow) const { return flows_[flow].bottleneck; }

 private:
  struct FlowState {
    double weight;
    double rate = 0;    // as settled; of a member, the rate before
    double target = 0;  // differs from `rate` only while a member is being filled
    double level = 0;   // target / weight
    int32_t priority;
    int32_t bottleneck = -1;
    bool member = false;
    bool filled = true;
  };
  struct Place {  // of a flow on a link
    int32_t flow;
    int64_t hop;  // where in the paths of all flows
  };
  // What one priority has of one link.
  struct View {
    double available = 0;
    double used = 0;
    double weight = 0;
    double highest = 0;  // level
    bool waits = false;  // a member is not filled yet
    double slack = 0;    // tolerance on `used`
    bool full() const { return used >= available - slack; }
    bool overfull() const { return used > available + slack; }
  };
  struct LinkState {
    double capacity;
    std::vector<Place> places;
    bool dirty = false;
    View view;
    uint64_t viewed = 0;  // the round that `view` holds for
    uint64_t round = 0;   // of fill(); what follows holds for this round
    int32_t waiting = 0;
    double left = 0;
    double weight = 0;        // of the members that wait
    double first_weight = 0;  // of all members
    double level = -1;        // at which it filled up; -1: it did not
  };

  double worth(const LinkState& link) const;
  void touch(int32_t link);
  void join(int32_t flow);
  const View& look(int32_t link);
  View view(const LinkState& link) const;
  bool find_bottleneck(int32_t flow);
  void check(int32_t link);
  bool check(const std::vector<int32_t>& links);
  void prepare(int32_t link);
  void fill();
  void fill_up(int32_t link, double level);
  void reweigh(LinkState& link);
  void commit(std::vector<int32_t>& changed);

  const Network& network_;
  std::vector<FlowState> flows_;
  std::vector<LinkState> links_;
  std::vector<int64_t> first_hop_;  // of each flow in place_of_
  std::vector<int32_t> place_of_;   // of each hop: its index in the link's places
  std::array<std::vector<int32_t>, kPriorities> arrived_;
  std::array<int32_t, kPriorities> under_way_{};
  std::vector<int32_t> dirty_;
  // While a priority is being settled:
  int32_t priority_ = 0;
  uint64_t round_ = 0;
  std::vector<int32_t> members_;
  std::vector<int32_t> touched_;  // the links of the members
  std::vector<std::pair<double, int32_t>> heap_;
};

}  // namespace theseus::flowsim
