#include "compiler/plan_graph.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "schedule/check.h"

namespace theseus {

Result<PlanGraph> PlanGraph::create(const Plan& plan, int micro_batches, uint64_t work_limit) {
  THESEUS_TRY(check_head(plan));
  const std::string who = "plan '" + plan.name + "': ";
  if (micro_batches < 1) return Status::argument("verify: at least one micro-batch is needed");
  if (plan.rank_plans.size() != static_cast<size_t>(plan.ranks)) {
    return Status::argument(who + "it has " + std::to_string(plan.rank_plans.size()) + " parts for " +
                            std::to_string(plan.ranks) + " ranks; only a whole plan can be verified");
  }
  uint64_t events = 0;
  uint64_t cells = 0;
  for (size_t rank = 0; rank < plan.rank_plans.size(); ++rank) {
    if (plan.rank_plans[rank].rank != static_cast<int>(rank)) {
      return Status::argument(who + "part " + std::to_string(rank) + " is not that of rank " + std::to_string(rank));
    }
    THESEUS_TRY(check_part(plan, plan.rank_plans[rank]));
    for (const ThreadBlock& tb : plan.rank_plans[rank].thread_blocks) events += tb.instructions.size();
    const BufferShape shape = buffer_shape(plan.collective, plan.ranks, plan.root, static_cast<int>(rank));
    cells +=
        static_cast<uint64_t>(shape.input_blocks + shape.output_blocks) * static_cast<uint64_t>(plan.chunks_per_block);
  }
  if (cells > work_limit / 16 / static_cast<uint64_t>(micro_batches)) {
    return Status::usage(who + std::to_string(cells) +
                         " chunks in all are more than the verifier's limit; raise "
                         "work_limit, or verify with fewer micro-batches");
  }
  events *= static_cast<uint64_t>(micro_batches);
  if (events > work_limit || events > std::numeric_limits<int32_t>::max() / 4) {
    return Status::usage(who + std::to_string(events) +
                         " instructions are more than the verifier's limit; raise "
                         "work_limit, or verify with fewer micro-batches");
  }
  PlanGraph graph;
  graph.plan_ = &plan;
  graph.micro_batches_ = micro_batches;
  graph.site_of_.reserve(static_cast<size_t>(events));
  for (const RankPlan& part : plan.rank_plans) THESEUS_TRY(graph.add_rank(part));
  THESEUS_TRY(graph.connect());
  return graph;
}

int PlanGraph::micro_batch_of(Event event) const {
  const Program& program = programs_[static_cast<size_t>(site(site_of(event)).program)];
  return (event - program.event) / program.length;
}

Event PlanGraph::event_of(int32_t index, int micro_batch) const {
  const Program& program = programs_[static_cast<size_t>(site(index).program)];
  return program.event + micro_batch * program.length + (index - program.site);
}

std::string PlanGraph::describe(int32_t index) const {
  const Site& s = site(index);
  return theseus::describe(s.rank, static_cast<size_t>(s.tb), static_cast<size_t>(s.step), *s.instruction);
}

Status PlanGraph::add_rank(const RankPlan& part) {
  const size_t first_end = ends_.size();
  for (const Connection& c : part.connections) {
    End end{c.outgoing ? part.rank : c.peer,
            c.outgoing ? c.peer : part.rank,
            c.rail,
            c.channel,
            c.outgoing,
            part.rank,
            -1,
            {}};
    ends_.push_back(std::move(end));
  }
  first_program_.push_back(static_cast<int32_t>(programs_.size()));
  for (size_t tb = 0; tb < part.thread_blocks.size(); ++tb) {
    const auto& instructions = part.thread_blocks[tb].instructions;
    const auto length = static_cast<int32_t>(instructions.size());
    const auto program = static_cast<int32_t>(programs_.size());
    programs_.push_back({part.rank, static_cast<int32_t>(sites_.size()), length, events_});
    for (int micro_batch = 0; micro_batch < micro_batches_; ++micro_batch) {
      for (int32_t step = 0; step < length; ++step) {
        site_of_.push_back(programs_.back().site + step);
      }
    }
    events_ += length * micro_batches_;
    for (int32_t step = 0; step < length; ++step) {
      const Instruction& i = instructions[static_cast<size_t>(step)];
      const auto site = static_cast<int32_t>(sites_.size());
      sites_.push_back({part.rank, static_cast<int32_t>(tb), step, program, -1, 0, 0, &i});
      std::vector<int16_t> used;
      if (i.recv >= 0) used.push_back(i.recv);
      for (const int16_t operand : i.fold) {
        if (operand != kLocalOperand) used.push_back(operand);
      }
      if (i.send >= 0) used.push_back(i.send);
      for (const int16_t id : used) {
        End& end = ends_[first_end + static_cast<size_t>(id)];
        if (end.tb >= 0 && end.tb != static_cast<int32_t>(tb)) {
          return Status::argument("plan '" + plan_->name + "', " + describe(site) + ": connection " +
                                  std::to_string(id) + " already belongs to TB " + std::to_string(end.tb));
        }
        if (!end.sites.empty() && end.sites.back() == site) {
          return Status::argument("plan '" + plan_->name + "', " + describe(site) + ": connection " +
                                  std::to_string(id) + " occurs twice");
        }
        end.tb = static_cast<int32_t>(tb);
        end.sites.push_back(site);
      }
    }
  }
  return {};
}

// Pairs the ends of every connection, and the messages on it by their order.
Status PlanGraph::connect() {
  std::vector<size_t> sorted(ends_.size());
  for (size_t i = 0; i < sorted.size(); ++i) sorted[i] = i;
  std::sort(sorted.begin(), sorted.end(), [&](size_t a, size_t b) {
    return std::tuple(ends_[a].key(), !ends_[a].outgoing) < std::tuple(ends_[b].key(), !ends_[b].outgoing);
  });
  // Incoming messages of a site in the order in which its instruction names them.
  std::vector<std::vector<std::pair<int32_t, int32_t>>> incoming(sites_.size());
  for (size_t i = 0; i < sorted.size(); i += 2) {
    const End& out = ends_[sorted[i]];
    const std::string who = "plan '" + plan_->name + "': connection from rank " + std::to_string(out.src) +
                            " to rank " + std::to_string(out.dst) + " on rail " + std::to_string(out.rail) +
                            ", channel " + std::to_string(out.channel);
    const bool paired = i + 1 < sorted.size() && ends_[sorted[i + 1]].key() == out.key() && out.outgoing &&
                        !ends_[sorted[i + 1]].outgoing;
    if (!paired) return Status::argument(who + " must have one end at each of both ranks");
    const End& in = ends_[sorted[i + 1]];
    if (out.sites.size() != in.sites.size()) {
      std::string why = who + ": " + std::to_string(out.sites.size()) + " messages are sent and " +
                        std::to_string(in.sites.size()) + " received";
      if (!out.sites.empty()) why += "; the last sent by " + describe(out.sites.back());
      if (!in.sites.empty()) why += "; the last received by " + describe(in.sites.back());
      return Status::argument(why);
    }
    const auto first = static_cast<int32_t>(messages_.size());
    for (size_t m = 0; m < out.sites.size(); ++m) {
      const auto index = static_cast<int32_t>(messages_.size());
      messages_.push_back(
          {out.sites[m], in.sites[m], first, static_cast<int32_t>(m), static_cast<int32_t>(out.sites.size())});
      sites_[static_cast<size_t>(out.sites[m])].send = index;
      // Which operand of the receiver this connection is.
      const Site& receiver = site(in.sites[m]);
      const auto& connections = plan_->rank_plans[static_cast<size_t>(receiver.rank)].connections;
      int32_t operand = 0;
      for (size_t f = 0; f < receiver.instruction->fold.size(); ++f) {
        const int16_t id = receiver.instruction->fold[f];
        if (id == kLocalOperand) continue;
        const Connection& c = connections[static_cast<size_t>(id)];
        if (c.peer == out.src && c.rail == out.rail && c.channel == out.channel) operand = static_cast<int32_t>(f);
      }
      incoming[static_cast<size_t>(in.sites[m])].emplace_back(operand, index);
    }
  }
  for (size_t s = 0; s < sites_.size(); ++s) {
    std::sort(incoming[s].begin(), incoming[s].end());
    sites_[s].receive = static_cast<int32_t>(received_.size());
    sites_[s].receives = static_cast<int32_t>(incoming[s].size());
    for (const auto& [operand, index] : incoming[s]) received_.push_back(index);
  }
  return {};
}

namespace {

// Kahn's algorithm. `predecessors(node, visit)` names what `node` waits for. Returns fewer than `nodes` where circles
// remain; `waits[node]` then counts what an unordered node still waits for.
template <class Predecessors>
std::vector<int32_t> topological_order(int32_t nodes, const Predecessors& predecessors, std::vector<int32_t>& waits) {
  const auto count = static_cast<size_t>(nodes);
  waits.assign(count, 0);
  std::vector<int64_t> first(count + 1, 0);
  for (int32_t node = 0; node < nodes; ++node) {
    predecessors(node, [&](int32_t before) {
      ++waits[static_cast<size_t>(node)];
      ++first[static_cast<size_t>(before) + 1];
    });
  }
  for (size_t i = 0; i < count; ++i) first[i + 1] += first[i];
  std::vector<int32_t> successors(static_cast<size_t>(first[count]));
  std::vector<int64_t> next(first.begin(), first.end() - 1);
  for (int32_t node = 0; node < nodes; ++node) {
    predecessors(node,
                 [&](int32_t before) { successors[static_cast<size_t>(next[static_cast<size_t>(before)]++)] = node; });
  }
  std::vector<int32_t> order;
  order.reserve(count);
  for (int32_t node = 0; node < nodes; ++node) {
    if (waits[static_cast<size_t>(node)] == 0) order.push_back(node);
  }
  for (size_t i = 0; i < order.size(); ++i) {
    const auto node = static_cast<size_t>(order[i]);
    for (int64_t s = first[node]; s < first[node + 1]; ++s) {
      const int32_t after = successors[static_cast<size_t>(s)];
      if (--waits[static_cast<size_t>(after)] == 0) order.push_back(after);
    }
  }
  return order;
}

// A circle among the nodes that still wait, each waiting for the next.
template <class Predecessors>
std::vector<int32_t> find_circle(const Predecessors& predecessors, const std::vector<int32_t>& waits) {
  int32_t node = 0;
  while (waits[static_cast<size_t>(node)] == 0) ++node;
  std::vector<int32_t> path;
  std::vector<int32_t> seen_at(waits.size(), -1);
  while (seen_at[static_cast<size_t>(node)] < 0) {
    seen_at[static_cast<size_t>(node)] = static_cast<int32_t>(path.size());
    path.push_back(node);
    int32_t blocker = -1;
    predecessors(node, [&](int32_t before) {
      if (waits[static_cast<size_t>(before)] > 0) blocker = before;
    });
    node = blocker;
  }
  path.erase(path.begin(), path.begin() + seen_at[static_cast<size_t>(node)]);
  return path;
}

constexpr size_t kShown = 8;

template <class SiteOf>
std::string text_of_circle(const PlanGraph& graph, const std::vector<int32_t>& circle, const SiteOf& site_of) {
  std::string text;
  int32_t last = -1;
  size_t shown = 0;
  for (const int32_t node : circle) {
    const int32_t site = site_of(node);
    if (site == last) continue;
    last = site;
    if (shown++ == kShown) return text + " waits for ... and so on in a circle";
    text += (text.empty() ? "" : " waits for ") + graph.describe(site);
  }
  return text + " waits for the first of these";
}

}  // namespace

Result<std::vector<Event>> PlanGraph::order(int slots) const {
  const auto predecessors = [&](Event event, auto&& visit) {
    for_each_local_predecessor(event, visit);
    for_each_sender(event, visit);
    for_each_creditor(event, slots, visit);
  };
  std::vector<int32_t> waits;
  auto order = topological_order(events_, predecessors, waits);
  if (order.size() == static_cast<size_t>(events_)) return order;
  const auto circle = find_circle(predecessors, waits);
  return Status::argument("plan '" + plan_->name + "' deadlocks with " + std::to_string(slots) +
                          " slots: " + text_of_circle(*this, circle, [&](int32_t event) { return site_of(event); }));
}

// Two nodes an event: 2e, it has all it waits for and its message can be seen; 2e + 1, it is over. A receiver needs
// only the first of its sender; a sender is over when its receiver is.
Status PlanGraph::check_rendezvous() const {
  const auto predecessors = [&](int32_t node, auto&& visit) {
    const Event event = node / 2;
    if (node % 2 == 0) {
      for_each_local_predecessor(event, [&](Event before) { visit(2 * before + 1); });
      for_each_sender(event, [&](Event sender) { visit(2 * sender); });
      return;
    }
    visit(2 * event);
    for_each_creditor(event, 0, [&](Event receiver) { visit(2 * receiver + 1); });
  };
  std::vector<int32_t> waits;
  const auto order = topological_order(2 * events_, predecessors, waits);
  if (order.size() == 2 * static_cast<size_t>(events_)) return {};
  const auto circle = find_circle(predecessors, waits);
  return Status::argument("plan '" + plan_->name + "' deadlocks without slots: " +
                          text_of_circle(*this, circle, [&](int32_t node) { return site_of(node / 2); }));
}

}  // namespace theseus
