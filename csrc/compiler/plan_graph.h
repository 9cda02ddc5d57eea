// A whole plan unrolled over micro-batches, as a graph of events. An event is one instruction of one micro-batch.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "base/result.h"
#include "schedule/plan.h"

namespace theseus {

using Event = int32_t;

// An instruction's place in a plan, and its messages.
struct Site {
  int32_t rank;
  int32_t tb;
  int32_t step;
  int32_t program;      // index into PlanGraph::programs
  int32_t send = -1;    // index into PlanGraph::messages
  int32_t receive = 0;  // the first of its incoming messages in PlanGraph::received
  int32_t receives = 0;
  const Instruction* instruction;
};

// A TB: sites [site, site + length), events [event, event + length * micro-batches).
struct Program {
  int32_t rank;
  int32_t site;
  int32_t length;
  Event event;
};

// A message of every micro-batch, between its two sites.
struct MessageEnds {
  int32_t sender;
  int32_t receiver;
  int32_t first;    // the first message of this connection, in PlanGraph::messages
  int32_t ordinal;  // which of the connection's messages of a micro-batch it is
  int32_t count;    // how many those are
};

class PlanGraph {
 public:
  // Checks structure and connections. `plan` must outlive the graph.
  static Result<PlanGraph> create(const Plan& plan, int micro_batches, uint64_t work_limit);

  const Plan& plan() const { return *plan_; }
  int micro_batches() const { return micro_batches_; }
  int32_t events() const { return events_; }
  int32_t site_of(Event event) const { return site_of_[static_cast<size_t>(event)]; }
  int micro_batch_of(Event event) const;
  Event event_of(int32_t site, int micro_batch) const;
  const Site& site(int32_t index) const { return sites_[static_cast<size_t>(index)]; }
  const Program& program(int32_t index) const { return programs_[static_cast<size_t>(index)]; }
  const std::vector<Program>& programs() const { return programs_; }
  const MessageEnds& message(int32_t index) const { return messages_[static_cast<size_t>(index)]; }
  int32_t received(int32_t index) const { return received_[static_cast<size_t>(index)]; }
  // "rank 3, TB 2, step 5 (Recv, Output[4])"
  std::string describe(int32_t site) const;

  // Events that must be over before `event` begins. Local: of the same rank.
  template <class Visit>
  void for_each_local_predecessor(Event event, Visit visit) const;
  template <class Visit>
  void for_each_sender(Event event, Visit visit) const;
  // The event that frees the slot which `event` sends into, if it needs one.
  template <class Visit>
  void for_each_creditor(Event event, int slots, Visit visit) const;

  // All events in an order in which they can happen, given `slots` >= 1; or the circle of waits that stops them.
  Result<std::vector<Event>> order(int slots) const;
  // The same check where every send waits for its receiver to be done.
  Status check_rendezvous() const;

 private:
  Status add_rank(const RankPlan& part);
  Status connect();

  struct End {
    int32_t src, dst;
    int16_t rail, channel;
    bool outgoing;
    int32_t rank;
    int32_t tb = -1;
    std::vector<int32_t> sites;
    auto key() const { return std::tuple(src, dst, rail, channel); }
  };

  const Plan* plan_ = nullptr;
  int micro_batches_ = 1;
  int32_t events_ = 0;
  std::vector<Site> sites_;
  std::vector<Program> programs_;
  std::vector<int32_t> first_program_;  // of each rank
  std::vector<int32_t> site_of_;
  std::vector<MessageEnds> messages_;
  std::vector<int32_t> received_;
  std::vector<End> ends_;
};

template <class Visit>
void PlanGraph::for_each_local_predecessor(Event event, Visit visit) const {
  const Site& here = site(site_of(event));
  const Program& program = programs_[static_cast<size_t>(here.program)];
  if (event > program.event) visit(event - 1);
  const int micro_batch = micro_batch_of(event);
  for (const Dependency& d : here.instruction->dependencies) {
    if (micro_batch < d.distance) continue;
    const Program& on = programs_[static_cast<size_t>(first_program_[static_cast<size_t>(here.rank)] + d.tb)];
    visit(on.event + (micro_batch - d.distance) * on.length + d.step);
  }
}

template <class Visit>
void PlanGraph::for_each_sender(Event event, Visit visit) const {
  const Site& here = site(site_of(event));
  for (int32_t i = 0; i < here.receives; ++i) {
    visit(event_of(message(received(here.receive + i)).sender, micro_batch_of(event)));
  }
}

template <class Visit>
void PlanGraph::for_each_creditor(Event event, int slots, Visit visit) const {
  const Site& here = site(site_of(event));
  if (here.send < 0) return;
  const MessageEnds& sent = message(here.send);
  const int64_t freed = int64_t{micro_batch_of(event)} * sent.count + sent.ordinal - slots;
  if (freed < 0) return;
  const auto& taken = message(sent.first + static_cast<int32_t>(freed % sent.count));
  visit(event_of(taken.receiver, static_cast<int>(freed / sent.count)));
}

}  // namespace theseus
