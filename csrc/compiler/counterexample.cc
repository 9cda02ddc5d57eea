#include "compiler/counterexample.h"

#include <algorithm>

namespace theseus {

History::History(const PlanGraph& graph, const Run& run)
    : graph_(graph),
      program_of_(static_cast<size_t>(graph.events())),
      message_of_(static_cast<size_t>(graph.events()), -1),
      first_taken_(static_cast<size_t>(graph.events()) + 1, 0) {
  for (size_t p = 0; p < graph.programs().size(); ++p) {
    const Program& program = graph.programs()[p];
    std::fill_n(program_of_.begin() + program.event, program.length, static_cast<int32_t>(p));
    for (int32_t step = 0; step < program.length; ++step) {
      int32_t& taken = first_taken_[static_cast<size_t>(program.event + step) + 1];
      for_each_incoming(graph, program.rank, program.instructions[step], [&](int32_t) { ++taken; });
    }
  }
  for (size_t e = 0; e + 1 < first_taken_.size(); ++e) first_taken_[e + 1] += first_taken_[e];
  taken_.resize(static_cast<size_t>(first_taken_.back()));
  std::vector<int32_t> sent{0};  // by link: the number of its next message
  for (const Link& link : graph.links()) sent.push_back(sent.back() + link.messages);
  sender_.resize(static_cast<size_t>(sent.back()));
  receiver_.resize(static_cast<size_t>(sent.back()));
  std::vector<int32_t> received = sent;
  order_.reserve(static_cast<size_t>(graph.events()));
  std::vector<int32_t> next(graph.programs().size(), 0);
  for (const Segment& segment : run.segments) {
    const Program& program = graph.program(segment.program);
    for (int32_t i = 0; i < segment.count; ++i) {
      const int32_t step = next[static_cast<size_t>(segment.program)]++;
      const Event event = program.event + step;
      const Instruction& instruction = program.instructions[step];
      order_.push_back(event);
      int32_t taken = first_taken_[static_cast<size_t>(event)];
      for_each_incoming(graph, program.rank, instruction, [&](int32_t link) {
        const int32_t message = received[static_cast<size_t>(link)]++;
        taken_[static_cast<size_t>(taken++)] = message;
        receiver_[static_cast<size_t>(message)] = event;
      });
      if (instruction.send < 0) continue;
      const int32_t message = sent[static_cast<size_t>(graph.link_of(program.rank, instruction.send))]++;
      message_of_[static_cast<size_t>(event)] = message;
      sender_[static_cast<size_t>(message)] = event;
    }
  }
}

namespace {

// Everything that must have happened before an event of one of two micro-batches in a row.
class Past {
 public:
  explicit Past(const History& history)
      : history_(history), events_(history.graph().events()), in_(2 * size(), false) {}

  void add_before(Event event, int micro_batch) {
    open_.push_back({event, micro_batch});
    while (!open_.empty()) {
      const Node node = open_.back();
      open_.pop_back();
      visit_before(node);
    }
  }
  void add(Event event, int micro_batch) { in_[index({event, micro_batch})] = true; }
  bool has(Event event, int micro_batch) const { return in_[index({event, micro_batch})]; }

 private:
  struct Node {
    Event event;
    int micro_batch;
  };
  size_t size() const { return static_cast<size_t>(events_); }
  size_t index(Node node) const {
    return static_cast<size_t>(node.micro_batch) * size() + static_cast<size_t>(node.event);
  }

  void visit_before(Node node) {
    const PlanGraph& graph = history_.graph();
    const Program& program = graph.program(history_.program_of(node.event));
    if (node.event > program.event) {
      reach({node.event - 1, node.micro_batch});
    } else if (node.micro_batch > 0) {
      reach({program.event + program.length - 1, node.micro_batch - 1});
    }
    for (const Dependency& d : history_.instruction(node.event).dependencies) {
      if (d.distance > node.micro_batch) continue;
      reach({history_.event_of(program.rank, d), node.micro_batch - d.distance});
    }
    history_.for_each_sender(node.event, [&](Event sender) { reach({sender, node.micro_batch}); });
  }
  void reach(Node node) {
    if (in_[index(node)]) return;
    in_[index(node)] = true;
    open_.push_back(node);
  }

  const History& history_;
  const Event events_;
  std::vector<bool> in_;
  std::vector<Node> open_;
};

// Follows how many messages are under way.
class Occupancy {
 public:
  explicit Occupancy(const PlanGraph& graph) : graph_(graph), in_flight_(graph.links().size(), 0) {}
  void issue(int32_t program, int32_t step) {
    const int rank = graph_.program(program).rank;
    const Instruction& i = graph_.instruction(program, step);
    for_each_incoming(graph_, rank, i, [&](int32_t link) { --in_flight_[static_cast<size_t>(link)]; });
    if (i.send >= 0) most_ = std::max(most_, ++in_flight_[static_cast<size_t>(graph_.link_of(rank, i.send))]);
  }
  int most() const { return most_; }

 private:
  const PlanGraph& graph_;
  std::vector<int> in_flight_;
  int most_ = 1;
};

}  // namespace

void show_race(const PlanGraph& graph, const History& history, const Conflict& race, int slots, Refusal& refusal) {
  const int later = race.next_micro_batch ? 1 : 0;
  const bool pending = refusal.reference.has_value();
  Past past(history);
  past.add_before(race.before, 0);
  if (pending) past.add(race.before, 0);
  past.add_before(race.after, later);
  Occupancy occupancy(graph);
  const auto issue = [&](Event event, int micro_batch) {
    const int32_t program = history.program_of(event);
    const int32_t step = history.step_of(event);
    refusal.interleaving.push_back(graph.occurrence(program, step, micro_batch));
    occupancy.issue(program, step);
  };
  for (int micro_batch = 0; micro_batch <= later; ++micro_batch) {
    for (const Event event : history.order()) {
      if (past.has(event, micro_batch)) issue(event, micro_batch);
    }
  }
  issue(race.after, later);
  if (!pending) issue(race.before, 0);
  refusal.slots = std::max({slots, occupancy.most(), 1});
}

}  // namespace theseus
