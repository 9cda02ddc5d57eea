#include "policy/choose.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "schedule/places.h"

namespace theseus {
namespace {

// What an algorithm costs on its critical path. Bytes are those of the busiest rank (shm) or host and direction (net).
struct Work {
  double shm_steps = 0;
  double net_steps = 0;
  double messages = 0;  // of the busiest rank, both directions
  double moved = 0;     // bytes that the busiest rank copies or reduces
  double net_bytes = 0;
  double rails = 1;    // rails that net_bytes are spread over
  double senders = 1;  // hosts that send to the busiest one at the same time
};

// The shape of the cluster as the formulas below need it.
struct Shape {
  double n, hosts, locals, rails, bytes;
  bool many_hosts;
  double rounds;       // log2(n), rounded up
  double host_rounds;  // log2(hosts), rounded up
};

Shape shape_of(const RequestShape& request) {
  const TopologySummary& t = request.topology;
  Shape s{};
  s.n = std::max(t.ranks, 1);
  s.hosts = std::max(t.hosts, 1);
  s.locals = t.ranks_per_host > 0 ? t.ranks_per_host : std::ceil(s.n / s.hosts);
  s.rails = std::max(t.rails, 1);
  s.bytes = static_cast<double>(request.bytes);
  s.many_hosts = t.hosts > 1;
  s.rounds = std::ceil(std::log2(s.n));
  s.host_rounds = std::ceil(std::log2(s.hosts));
  return s;
}

// `halves`: an AllReduce is a ReduceScatter and an AllGather; each of those is one half.
Work direct_work(const RequestShape& request, const Shape& s, double halves) {
  const double share = s.bytes * (s.n - 1) / s.n;
  Work w;
  w.rails = s.rails;
  (s.many_hosts ? w.net_steps : w.shm_steps) = halves;
  w.messages = 2 * halves * (s.n - 1);
  w.moved = 2 * halves * share;
  w.net_bytes = halves * s.bytes * (s.n - s.locals) * s.locals / s.n;
  w.senders = s.hosts - 1;
  switch (request.collective) {
    case Collective::Broadcast:
      w.messages = s.n - 1;
      w.moved = 2 * s.bytes;  // readers work side by side
      w.net_bytes = s.bytes * (s.n - s.locals);
      break;
    case Collective::Reduce:
      w.messages = s.n - 1;
      w.moved = s.bytes * s.n;  // the root folds alone
      w.net_bytes = s.bytes * (s.n - s.locals);
      break;
    case Collective::AllToAll: w.net_bytes = s.bytes * s.locals * (s.n - s.locals) / s.n; break;
    default: break;
  }
  return w;
}

Work ring_work(const RequestShape& request, const Shape& s, double halves) {
  Work w;
  w.rails = s.rails;
  const bool is_chain = is_rooted(request.collective);
  const double hops = (s.n - 1) * (is_chain ? 1 : halves);
  w.net_steps = s.many_hosts ? hops * s.hosts / s.n : 0;
  w.shm_steps = hops - w.net_steps;
  w.messages = 2 * (is_chain ? 1 : hops);
  const double share = is_chain ? s.bytes : s.bytes * (s.n - 1) / s.n * halves;
  w.moved = 2 * share;
  w.net_bytes = share;
  return w;
}

Work tree_work(const RequestShape& request, const Shape& s) {
  const double ways = request.collective == Collective::AllReduce ? 2 : 1;
  Work w;
  w.net_steps = ways * s.host_rounds;
  w.shm_steps = ways * s.rounds - w.net_steps;
  w.messages = ways * s.rounds;
  w.moved = ways * s.rounds * s.bytes;
  w.net_bytes = s.host_rounds * s.bytes;
  return w;
}

Work doubling_work(const RequestShape& request, const Shape& s) {
  Work w;
  const bool is_power = std::exp2(s.rounds) == s.n;
  const double steps = request.collective == Collective::AllReduce && !is_power ? s.rounds + 1 : s.rounds;
  w.net_steps = s.many_hosts ? s.host_rounds : 0;
  w.shm_steps = steps - w.net_steps;
  w.messages = 2 * steps;
  w.moved = 2 * steps * s.bytes;
  w.net_bytes = s.host_rounds * s.locals * s.bytes;
  if (request.collective != Collective::AllReduce) {
    w.messages = 2 * (s.n - 1);
    w.moved = 2 * s.bytes;
    w.net_bytes = s.bytes * s.locals * (s.hosts - 1) / s.hosts;
    w.rails = s.rails;
  }
  return w;
}

Work halving_doubling_work(const Shape& s) {
  Work w;
  w.rails = s.rails;
  w.net_steps = s.many_hosts ? 2 * s.host_rounds : 0;
  w.shm_steps = 2 * s.rounds - w.net_steps;
  w.messages = 4 * (s.n - 1);
  w.moved = 4 * s.bytes * (s.n - 1) / s.n;
  // Twice what it sends: the rounds of a piece wait for each other, and half of the time the rails do too.
  w.net_bytes = 2 * 2 * s.bytes * s.locals * (s.hosts - 1) / s.hosts;
  return w;
}

Work hierarchical_work(const RequestShape& request, const Shape& s, double halves) {
  Work w;
  w.rails = s.rails;
  const bool has_lanes = s.locals > 1;
  const bool is_chain = is_rooted(request.collective);
  const double ways = is_chain ? 1 : halves;
  w.shm_steps = has_lanes ? ways * (is_chain ? 2 : 1) : 0;
  w.net_steps = s.many_hosts ? ways * (is_chain ? 2 : 1) : 0;
  const double pieces = s.hosts > 1 ? s.rails / std::min(s.rails, s.locals) : 1;
  const double blocks = request.collective == Collective::AllReduce ? 2 * pieces : pieces;
  w.messages = ways * 2 * blocks * (s.hosts - 1 + s.hosts * (s.locals - 1));
  w.moved = (is_chain ? 3 : 2 * ways) * s.bytes;
  w.net_bytes = is_chain ? s.bytes : ways * s.bytes * (s.hosts - 1) / s.hosts;
  w.senders = s.hosts - 1;
  return w;
}

// As hierarchical, but round a ring instead of straight across: more steps, and each host hears of one only.
Work hm_work(const RequestShape& request, const Shape& s, double halves) {
  Work w = hierarchical_work(request, s, halves);
  w.net_steps = halves * (s.hosts - 1);
  w.senders = 1;
  return w;
}

Work one_shot_work(const Shape& s) {
  Work w;
  (s.many_hosts ? w.net_steps : w.shm_steps) = 1;
  w.messages = 2 * (s.n - 1);
  w.moved = 2 * (s.n - 1) * s.bytes;
  w.net_bytes = s.locals * (s.n - s.locals) * s.bytes;
  return w;
}

Work work_of(std::string_view name, const RequestShape& request) {
  const Shape s = shape_of(request);
  const double halves = request.collective == Collective::AllReduce ? 2 : 1;
  if (name == "one_shot") return one_shot_work(s);
  if (name == "ring") return ring_work(request, s, halves);
  if (name == "tree") return tree_work(request, s);
  if (name == "doubling" || name == "halving") return doubling_work(request, s);
  if (name == "halving_doubling") return halving_doubling_work(s);
  if (name == "hierarchical") return hierarchical_work(request, s, halves);
  if (name == "hm") return hm_work(request, s, halves);
  if (name == "pairwise" && !s.many_hosts) {
    Work w = direct_work(request, s, halves);
    w.shm_steps += 1;  // rounds gain nothing where there is no link to share
    return w;
  }
  if (name == "pairwise") return direct_work(request, s, halves);
  return direct_work(request, s, halves);
}

double seconds(const Work& work, bool many_hosts, const CostConstants& costs) {
  const double per_message = many_hosts ? costs.net_message : costs.shm_message;
  double total = work.shm_steps * costs.shm_step + work.net_steps * costs.net_step + work.messages * per_message +
                 work.moved * costs.shm_byte;
  const double lost = work.senders > 1 ? 1 + costs.net_incast : 1;
  if (many_hosts) total += work.net_bytes / work.rails * costs.net_byte * lost;
  return total;
}

std::string in_microseconds(double score) {
  char text[48];
  std::snprintf(text, sizeof text, "predicted %.3g us", score * 1e6);
  return text;
}

// Longest Fold that executors take (executor/execution.cc).
constexpr int kMostFolded = 64;

// hm folds no more than the ranks of a host, but is held to the same: above it, nobody has compared it with ring.
bool folds_all(const std::string& algorithm, Collective collective) {
  const bool reduces = collective == Collective::AllReduce || collective == Collective::ReduceScatter ||
                       collective == Collective::Reduce;
  return reduces &&
         (algorithm == "one_shot" || algorithm == "direct" || algorithm == "hierarchical" || algorithm == "hm");
}

std::vector<Candidate> rate(const RequestShape& request, const Forced& forced, const CostConstants& costs) {
  std::vector<Candidate> candidates;
  for (const BuiltIn& entry : built_ins()) {
    if (!entry.makes(request.collective)) continue;
    Candidate candidate{entry.name, true, 0, {}};
    if (!forced.allows(request.collective, entry.name)) {
      candidate.usable = false;
      candidate.reason = "ruled out by THESEUS_ALGO";
    } else if (request.topology.ranks > kMostFolded && folds_all(entry.name, request.collective)) {
      candidate.usable = false;
      candidate.reason = "folds the values of all ranks at once, which executors do for at most 64";
    } else if (entry.needs_even_hosts && request.topology.ranks_per_host == 0) {
      candidate.usable = false;
      candidate.reason = "needs the same number of ranks on every host";
    } else {
      candidate.score = seconds(work_of(entry.name, request), request.topology.hosts > 1, costs);
      candidate.reason = in_microseconds(candidate.score);
    }
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

const Candidate* best_of(const std::vector<Candidate>& candidates) {
  const Candidate* best = nullptr;
  for (const Candidate& candidate : candidates) {
    if (candidate.usable && (best == nullptr || candidate.score < best->score)) best = &candidate;
  }
  return best;
}

}  // namespace

Choice choose(const RequestShape& request, const Forced& forced, const CostConstants& costs) {
  Choice choice;
  choice.candidates = rate(request, forced, costs);
  std::string note;
  const Candidate* best = best_of(choice.candidates);
  if (best == nullptr) {
    note = "; THESEUS_ALGO leaves none that can be used here, so it was set aside";
    choice.candidates = rate(request, Forced{}, costs);
    best = best_of(choice.candidates);
  }
  if (best == nullptr) {
    choice.reason = std::string(name_of(request.collective)) + " runs as point-to-point calls";
    return choice;
  }
  choice.algorithm = best->algorithm;
  choice.reason = "cheapest of those usable: " + best->reason + note;
  return choice;
}

}  // namespace theseus
