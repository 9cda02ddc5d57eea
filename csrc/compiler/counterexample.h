// The history of a run, and interleavings made of it that show what is wrong with a plan.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/plan_graph.h"
#include "compiler/races.h"
#include "compiler/verify.h"
#include "compiler/verify_run.h"

namespace theseus {

// Which event came when, and which took which message. Only made where a plan may be refused, or where a rank's own
// order does not tell enough: it costs more than the run itself.
class History {
 public:
  // `run` is complete.
  History(const PlanGraph& graph, const Run& run);

  const PlanGraph& graph() const { return graph_; }
  const std::vector<Event>& order() const { return order_; }
  int32_t program_of(Event event) const { return program_of_[static_cast<size_t>(event)]; }
  int32_t step_of(Event event) const { return event - graph_.program(program_of(event)).event; }
  const Instruction& instruction(Event event) const { return graph_.instruction(program_of(event), step_of(event)); }
  Event event_of(int32_t rank, const Dependency& d) const {
    return graph_.program(graph_.first_program(rank) + d.tb).event + d.step;
  }
  // The event that takes the message which `send` sends.
  Event receiver_of(Event send) const { return receiver_[static_cast<size_t>(message_of_[static_cast<size_t>(send)])]; }
  // The events that sent the messages which `event` takes.
  template <class Visit>
  void for_each_sender(Event event, Visit visit) const {
    const auto e = static_cast<size_t>(event);
    for (int32_t m = first_taken_[e]; m < first_taken_[e + 1]; ++m) {
      visit(sender_[static_cast<size_t>(taken_[static_cast<size_t>(m)])]);
    }
  }

 private:
  const PlanGraph& graph_;
  std::vector<Event> order_;
  std::vector<int32_t> program_of_;
  std::vector<int32_t> message_of_;  // by event; -1: sends none
  std::vector<Event> sender_;        // by message
  std::vector<Event> receiver_;
  std::vector<int32_t> first_taken_;  // by event: messages taken, in taken_
  std::vector<int32_t> taken_;
};

// Fills in `refusal` the interleaving that leads to `race`, and the slots that it needs, at least `slots`.
void show_race(const PlanGraph& graph, const History& history, const Conflict& race, int slots, Refusal& refusal);

}  // namespace theseus
