#include "compiler/plan_graph.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "schedule/check.h"
#include "schedule/places.h"

namespace theseus {
namespace {

Refusal refuse_plan(FaultKind kind, const Plan& plan, const std::string& text, int rank = -1) {
  Refusal refusal;
  refusal.kind = kind;
  refusal.rank = rank;
  refusal.text = "plan '" + plan.name + "'" + text;
  return refusal;
}

uint64_t cells_of(const Plan& plan, const RankPlan& part) {
  const BufferShape shape = buffer_shape(plan.collective, plan.ranks, plan.root, part.rank);
  return static_cast<uint64_t>(shape.output_blocks) * static_cast<uint64_t>(plan.chunks_per_block) +
         static_cast<uint64_t>(part.scratch_chunks);
}

std::string count_of(uint64_t number, const char* what) { return std::to_string(number) + " " + what; }

}  // namespace

std::optional<Refusal> PlanGraph::build(const Plan& plan, const VerifyOptions& options) {
  plan_ = &plan;
  if (const Status head = check_head(plan); !head.ok()) {
    Refusal refusal;
    refusal.text = head.message();
    return refusal;
  }
  if (auto refusal = check_parts(options)) return refusal;
  if (auto refusal = check_size(options)) return refusal;
  for (const RankPlan& part : plan.rank_plans) {
    first_program_.push_back(static_cast<int32_t>(programs_.size()));
    for (size_t tb = 0; tb < part.thread_blocks.size(); ++tb) {
      const auto& list = part.thread_blocks[tb].instructions;
      const auto length = static_cast<int32_t>(list.size());
      programs_.push_back({part.rank, static_cast<int32_t>(tb), length, events_, list.data()});
      events_ += length;
    }
  }
  first_program_.push_back(static_cast<int32_t>(programs_.size()));
  if (auto refusal = number_ends()) return refusal;
  if (auto refusal = take_ends()) return refusal;
  if (plan.loop == LoopOrder::SubPipelines) {
    if (auto refusal = check_dependencies()) return refusal;
  }
  runnable_ = true;
  return check_counts();
}

std::optional<Refusal> PlanGraph::check_parts(const VerifyOptions& options) const {
  const Plan& plan = *plan_;
  if (plan.rank_plans.size() != static_cast<size_t>(plan.ranks)) {
    return refuse_plan(FaultKind::Structure, plan,
                       ": it has " + count_of(plan.rank_plans.size(), "parts for ") +
                           count_of(static_cast<uint64_t>(plan.ranks), "ranks; only a whole plan can be verified"));
  }
  const auto beyond = [](size_t count, int limit) { return limit > 0 && count > static_cast<size_t>(limit); };
  for (int rank = 0; rank < plan.ranks; ++rank) {
    const RankPlan& part = plan.rank_plans[static_cast<size_t>(rank)];
    const std::string who = ", rank " + std::to_string(rank) + ": ";
    if (part.rank != rank) {
      return refuse_plan(FaultKind::Structure, plan, who + "its part is that of rank " + std::to_string(part.rank),
                         rank);
    }
    Spot spot;
    if (const Status status = check_part(plan, part, &spot); !status.ok()) {
      Refusal refusal;
      refusal.rank = rank;
      refusal.tb = spot.tb;
      refusal.step = spot.step;
      refusal.text = status.message();
      return refusal;
    }
    if (beyond(part.thread_blocks.size(), options.max_thread_blocks)) {
      return refuse_plan(FaultKind::Limit, plan,
                         who + count_of(part.thread_blocks.size(), "TBs are more than the ") +
                             count_of(static_cast<uint64_t>(options.max_thread_blocks), "allowed"),
                         rank);
    }
    if (beyond(part.connections.size(), options.max_connections)) {
      return refuse_plan(FaultKind::Limit, plan,
                         who + count_of(part.connections.size(), "connections are more than the ") +
                             count_of(static_cast<uint64_t>(options.max_connections), "allowed"),
                         rank);
    }
  }
  return {};
}

std::optional<Refusal> PlanGraph::check_size(const VerifyOptions& options) const {
  uint64_t events = 0;
  uint64_t ends = 0;
  uint64_t programs = 0;
  uint64_t cells = 0;
  for (const RankPlan& part : plan_->rank_plans) {
    for (const ThreadBlock& tb : part.thread_blocks) events += tb.instructions.size();
    ends += part.connections.size();
    programs += part.thread_blocks.size();
    cells += cells_of(*plan_, part);
  }
  const uint64_t limit = std::min<uint64_t>(options.work_limit, std::numeric_limits<int32_t>::max() / 2);
  const auto too_large = [&](uint64_t number, const char* what) {
    return refuse_plan(FaultKind::TooLarge, *plan_,
                       ": " + count_of(number, what) + " are more than the verifier's limit; raise work_limit");
  };
  if (events > limit) return too_large(events, "instructions");
  if (ends > limit) return too_large(ends, "connections");
  if (programs > limit) return too_large(programs, "TBs");
  if (cells > limit / 4) return too_large(cells, "chunks in all");
  return {};
}

// Pairs the two ends of every connection. Outgoing ends are dealt to the ranks they lead to, which finds them there in
// the order of (source, rail, channel), the order in which that rank's incoming ends are gone through as well.
std::optional<Refusal> PlanGraph::number_ends() {
  const auto& parts = plan_->rank_plans;
  struct End {
    int32_t peer;
    int16_t rail, channel;
    int16_t id;
    auto key() const { return std::tuple(peer, rail, channel); }
  };
  std::vector<int32_t> arrivals(parts.size() + 1, 0);
  int32_t total = 0;
  for (const RankPlan& part : parts) {
    first_end_.push_back(total);
    total += static_cast<int32_t>(part.connections.size());
    for (const Connection& c : part.connections) arrivals[static_cast<size_t>(c.peer) + 1] += c.outgoing ? 1 : 0;
  }
  first_end_.push_back(total);
  for (size_t r = 0; r + 1 < arrivals.size(); ++r) arrivals[r + 1] += arrivals[r];
  link_of_end_.assign(static_cast<size_t>(total), -1);
  const auto sorted_ends = [&](const RankPlan& part, bool outgoing) {
    std::vector<End> ends;
    for (size_t id = 0; id < part.connections.size(); ++id) {
      const Connection& c = part.connections[id];
      if (c.outgoing == outgoing) ends.push_back({c.peer, c.rail, c.channel, static_cast<int16_t>(id)});
    }
    std::sort(ends.begin(), ends.end(), [](const End& a, const End& b) { return a.key() < b.key(); });
    return ends;
  };
  struct Arrival {
    End from;      // as its receiver would name it
    int32_t rank;  // who has the other end
    int16_t id;
  };
  std::vector<Arrival> arriving(static_cast<size_t>(arrivals.back()));
  std::vector<int32_t> next(arrivals.begin(), arrivals.end() - 1);
  for (const RankPlan& part : parts) {
    for (const End& end : sorted_ends(part, true)) {
      arriving[static_cast<size_t>(next[static_cast<size_t>(end.peer)]++)] = {
          {part.rank, end.rail, end.channel, -1}, part.rank, end.id};
    }
  }
  for (const RankPlan& part : parts) {
    const auto rank = static_cast<size_t>(part.rank);
    auto arrival = static_cast<size_t>(arrivals[rank]);
    const auto last = static_cast<size_t>(arrivals[rank + 1]);
    for (const End& end : sorted_ends(part, false)) {
      if (arrival == last || arriving[arrival].from.key() != end.key()) {
        // Of two lists in order, the lower head has no partner.
        const bool other = arrival != last && arriving[arrival].from.key() < end.key();
        return other ? refuse_pair(arriving[arrival].rank, arriving[arrival].id) : refuse_pair(part.rank, end.id);
      }
      const auto link = static_cast<int32_t>(links_.size());
      links_.emplace_back();
      link_of_end_[static_cast<size_t>(first_end_[rank] + end.id)] = link;
      const Arrival& other = arriving[arrival++];
      link_of_end_[static_cast<size_t>(first_end_[static_cast<size_t>(other.rank)] + other.id)] = link;
      // The same key again at either side is a third end.
      if (arrival != last && arriving[arrival].from.key() == end.key()) {
        return refuse_pair(arriving[arrival].rank, arriving[arrival].id);
      }
    }
    if (arrival != last) return refuse_pair(arriving[arrival].rank, arriving[arrival].id);
  }
  return {};
}

std::optional<Refusal> PlanGraph::refuse_pair(int rank, int16_t id) const {
  const Connection& c = plan_->rank_plans[static_cast<size_t>(rank)].connections[static_cast<size_t>(id)];
  return refuse_plan(FaultKind::Structure, *plan_,
                     ": connection from rank " + std::to_string(c.outgoing ? rank : c.peer) + " to rank " +
                         std::to_string(c.outgoing ? c.peer : rank) + " on rail " + std::to_string(c.rail) +
                         ", channel " + std::to_string(c.channel) + " must have one end at each of both ranks",
                     rank);
}

std::optional<Refusal> PlanGraph::take_ends() {
  std::vector<Event> last_use(link_of_end_.size(), -1);
  for (size_t p = 0; p < programs_.size(); ++p) {
    const Program& here = programs_[p];
    for (int32_t step = 0; step < here.length; ++step) {
      const Instruction& i = here.instructions[step];
      std::optional<Refusal> refusal;
      const auto take = [&](int16_t id) {
        if (id < 0 || refusal) return;  // kLocalOperand, too, is negative
        Event& last = last_use[static_cast<size_t>(first_end_[static_cast<size_t>(here.rank)] + id)];
        refusal = take_end(static_cast<int32_t>(p), step, id, last == here.event + step);
        last = here.event + step;
      };
      take(i.recv);
      take(i.send);
      for (const int16_t operand : i.fold) take(operand);
      if (refusal) return refusal;
    }
  }
  return {};
}

std::optional<Refusal> PlanGraph::take_end(int32_t program, int32_t step, int16_t id, bool again) {
  const Program& here = programs_[static_cast<size_t>(program)];
  const bool outgoing = plan_->rank_plans[static_cast<size_t>(here.rank)].connections[static_cast<size_t>(id)].outgoing;
  Link& link = links_[static_cast<size_t>(link_of(here.rank, id))];
  int32_t& owner = outgoing ? link.sender : link.receiver;
  if (again || (owner >= 0 && owner != program)) {
    const Instruction& i = here.instructions[step];
    const std::string what =
        again ? " occurs twice" : " already belongs to TB " + std::to_string(programs_[static_cast<size_t>(owner)].tb);
    return refuse(FaultKind::Structure, program, step, i.dst.buffer != Buffer::None ? i.dst : i.src,
                  describe(program, step) + ": connection " + std::to_string(id) + what);
  }
  owner = program;
  ++(outgoing ? link.messages : link.expected);
  return {};
}

// Nothing waits for a later sub-pipeline: so the sub-pipelines can run one after the other.
std::optional<Refusal> PlanGraph::check_dependencies() const {
  for (size_t p = 0; p < programs_.size(); ++p) {
    const Program& here = programs_[p];
    for (int32_t step = 0; step < here.length; ++step) {
      const Instruction& i = here.instructions[step];
      for (const Dependency& d : i.dependencies) {
        const int32_t on = first_program(here.rank) + d.tb;
        if (instruction(on, d.step).sub_pipeline <= i.sub_pipeline) continue;
        const auto program = static_cast<int32_t>(p);
        return refuse(FaultKind::Structure, program, step, i.dst.buffer != Buffer::None ? i.dst : i.src,
                      describe(program, step) + " of sub-pipeline " + std::to_string(i.sub_pipeline) + " waits for " +
                          describe(on, d.step) + " of the later sub-pipeline " +
                          std::to_string(instruction(on, d.step).sub_pipeline));
      }
    }
  }
  return {};
}

std::optional<Refusal> PlanGraph::check_counts() const {
  for (size_t l = 0; l < links_.size(); ++l) {
    const Link& link = links_[l];
    if (link.messages == link.expected) continue;
    std::string why = "connection from " + describe_link(*this, static_cast<int32_t>(l)) + ": " +
                      std::to_string(link.messages) + " messages are sent and " + std::to_string(link.expected) +
                      " received";
    // The last use of the busier end is the one that has no partner.
    const int32_t program = link.messages > link.expected ? link.sender : link.receiver;
    const Program& here = programs_[static_cast<size_t>(program)];
    int32_t step = here.length - 1;
    for (; step > 0; --step) {
      const Instruction& i = here.instructions[step];
      bool uses = program == link.sender && i.send >= 0 && link_of(here.rank, i.send) == static_cast<int32_t>(l);
      for_each_incoming(*this, here.rank, i, [&](int32_t in) { uses |= in == static_cast<int32_t>(l); });
      if (uses) break;
    }
    const Instruction& i = here.instructions[step];
    why += program == link.sender ? "; the last sent by " : "; the last received by ";
    return refuse(FaultKind::Structure, program, step, i.dst.buffer != Buffer::None ? i.dst : i.src,
                  why + describe(program, step));
  }
  return {};
}

int32_t PlanGraph::program_of(Event event) const {
  const auto after = std::upper_bound(programs_.begin(), programs_.end(), event,
                                      [](Event e, const Program& program) { return e < program.event; });
  return static_cast<int32_t>(after - programs_.begin()) - 1;
}

Occurrence PlanGraph::occurrence(int32_t program, int32_t step, int32_t micro_batch) const {
  const Program& p = programs_[static_cast<size_t>(program)];
  return {p.rank, p.tb, step, micro_batch};
}

std::string PlanGraph::describe(int32_t program, int32_t step) const {
  const Program& p = programs_[static_cast<size_t>(program)];
  return theseus::describe(p.rank, static_cast<size_t>(p.tb), static_cast<size_t>(step), p.instructions[step]);
}

Refusal PlanGraph::refuse(FaultKind kind, int32_t program, int32_t step, Place place, const std::string& text) const {
  const Program& p = programs_[static_cast<size_t>(program)];
  Refusal refusal = refuse_plan(kind, *plan_, ": " + text, p.rank);
  refusal.tb = p.tb;
  refusal.step = step;
  refusal.place = place;
  if (place.buffer == Buffer::Input || place.buffer == Buffer::Output) {
    refusal.chunk = space_of(*plan_).chunk_at(p.rank, place);
  }
  return refusal;
}

std::string describe_link(const PlanGraph& graph, int32_t link) {
  for (const RankPlan& part : graph.plan().rank_plans) {
    for (size_t id = 0; id < part.connections.size(); ++id) {
      if (graph.link_of(part.rank, static_cast<int16_t>(id)) != link) continue;
      const Connection& c = part.connections[id];
      return "rank " + std::to_string(c.outgoing ? part.rank : c.peer) + " to rank " +
             std::to_string(c.outgoing ? c.peer : part.rank) + " on rail " + std::to_string(c.rail) + ", channel " +
             std::to_string(c.channel);
    }
  }
  return "nowhere";
}

}  // namespace theseus
