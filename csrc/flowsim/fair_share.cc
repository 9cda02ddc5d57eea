#include "flowsim/fair_share.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace theseus::flowsim {

namespace {

// Rates that differ by less are the same, so that rounding alone moves no event.
constexpr double kSameRate = 1e-12;
// Of a capacity: what sums of rates may be off by.
constexpr double kRounding = 1e-14;
// After so many rounds, members are added by neighbourhood: a long chain must not cost a round a flow.
constexpr int kPatience = 32;

}  // namespace

FairShare::FairShare(const Network& network) : network_(network) {
  flows_.resize(network.activities());
  first_hop_.resize(network.activities());
  int64_t hops = 0;
  for (int32_t id = 0; id < network.activities(); ++id) {
    flows_[id].weight = network.activity(id).weight;
    flows_[id].priority = network.activity(id).priority;
    first_hop_[id] = hops;
    hops += static_cast<int64_t>(network.path(id).size());
  }
  place_of_.resize(hops);
  links_.resize(network.links());
  for (int32_t id = 0; id < network.links(); ++id) links_[id].capacity = network.link(id).capacity;
}

void FairShare::touch(int32_t link) {
  if (links_[link].dirty) return;
  links_[link].dirty = true;
  dirty_.push_back(link);
}

void FairShare::add(int32_t flow) {
  int64_t hop = first_hop_[flow];
  for (const int32_t link : network_.path(flow)) {
    place_of_[hop] = static_cast<int32_t>(links_[link].places.size());
    links_[link].places.push_back({flow, hop++});
    touch(link);
  }
  ++under_way_[flows_[flow].priority];
  arrived_[flows_[flow].priority].push_back(flow);
}

void FairShare::remove(int32_t flow) {
  int64_t hop = first_hop_[flow];
  for (const int32_t link : network_.path(flow)) {
    std::vector<Place>& places = links_[link].places;
    const int32_t at = place_of_[hop++];
    places[at] = places.back();
    place_of_[places[at].hop] = at;
    places.pop_back();
    touch(link);
  }
  --under_way_[flows_[flow].priority];
  flows_[flow].rate = flows_[flow].target = flows_[flow].level = 0;
}

void FairShare::set_capacity(int32_t link, double capacity) {
  links_[link].capacity = capacity;
  touch(link);
}

void FairShare::settle(std::vector<int32_t>& changed) {
  for (priority_ = 0; priority_ < kPriorities && !dirty_.empty(); ++priority_) {
    if (under_way_[priority_] == 0) continue;
    members_.clear();
    for (const int32_t flow : arrived_[priority_]) join(flow);
    arrived_[priority_].clear();
    ++round_;  // no link has been filled yet
    check(dirty_);
    int rounds = 0;
    bool more = !members_.empty();
    while (more) {
      fill();
      more = check(touched_);
      if (!more || ++rounds < kPatience) continue;
      for (const int32_t link : touched_) {
        for (const Place& place : links_[link].places) {
          if (flows_[place.flow].priority == priority_ && !flows_[place.flow].member) join(place.flow);
        }
      }
    }
    commit(changed);
  }
  for (const int32_t link : dirty_) links_[link].dirty = false;
  dirty_.clear();
}

void FairShare::join(int32_t flow) {
  flows_[flow].member = true;
  flows_[flow].filled = false;
  members_.push_back(flow);
}

double FairShare::worth(const LinkState& link) const {
  const double contention = network_.link(static_cast<int32_t>(&link - links_.data())).contention;
  if (contention == 0 || link.places.size() < 2) return link.capacity;
  return link.capacity / (1 + contention * static_cast<double>(link.places.size() - 1));
}

FairShare::View FairShare::view(const LinkState& link) const {
  View view;
  const double worth = this->worth(link);
  view.available = worth;
  for (const Place& place : link.places) {
    const FlowState& flow = flows_[place.flow];
    if (flow.priority < priority_) view.available -= flow.target;
    if (flow.priority != priority_) continue;
    view.used += flow.target;
    view.weight += flow.weight;
    view.highest = std::max(view.highest, flow.level);
    view.waits |= !flow.filled;
  }
  if (view.available < kFairness * worth) view.available = 0;
  view.slack = kFairness * view.available + kRounding * worth;
  return view;
}

// Rates do not change within a round, so a link is looked at once.
const FairShare::View& FairShare::look(int32_t id) {
  LinkState& link = links_[id];
  if (link.viewed != round_) {
    link.viewed = round_;
    link.view = view(link);
  }
  return link.view;
}

// True if the flow has a bottleneck as things stand, which is then noted.
bool FairShare::find_bottleneck(int32_t id) {
  FlowState& flow = flows_[id];
  for (const int32_t link : network_.path(id)) {
    const View& view = look(link);
    if (view.full() && !view.overfull() && flow.level >= view.highest * (1 - kFairness)) {
      flow.bottleneck = link;
      return true;
    }
  }
  return false;
}

// Makes members of the flows of the link that this link robbed of their bottleneck, or that must make room on it.
void FairShare::check(int32_t id) {
  const LinkState& link = links_[id];
  const View& view = look(id);
  if (view.weight == 0) return;
  // Nobody gets less than an even share; who has no more than that need not make room for a flow to come.
  double ceiling = view.waits ? view.available / view.weight : -1;
  if (!view.waits && link.round == round_) ceiling = link.level;
  for (const Place& place : link.places) {
    FlowState& flow = flows_[place.flow];
    if (flow.priority != priority_ || flow.member) continue;
    const bool above = ceiling >= 0 && flow.level > ceiling * (1 + kFairness);
    const bool lost = flow.bottleneck == id && !(view.full() && flow.level >= view.highest * (1 - kFairness));
    if (above || (view.overfull() && flow.level > 0) || (lost && !find_bottleneck(place.flow))) join(place.flow);
  }
}

// True if there are new members.
bool FairShare::check(const std::vector<int32_t>& links) {
  const size_t before = members_.size();
  for (const int32_t link : links) check(link);
  return members_.size() > before;
}

// What the members may share of a link: all that flows which keep their rates leave.
void FairShare::prepare(int32_t id) {
  LinkState& link = links_[id];
  link.left = worth(link);
  link.weight = 0;
  link.waiting = 0;
  link.level = -1;
  const double nothing = kFairness * link.left;
  double others = 0;
  for (const Place& place : link.places) {
    const FlowState& flow = flows_[place.flow];
    if (flow.priority < priority_) {
      link.left -= flow.target;
    } else if (flow.priority == priority_ && flow.member) {
      link.weight += flow.weight;
      ++link.waiting;
    } else if (flow.priority == priority_) {
      others += flow.target;
    }
  }
  link.left = link.left < nothing ? 0 : std::max(0.0, link.left - others);
  link.first_weight = link.weight;
}

// Water-filling over the members: the link with the least for each weight fills up first, and its members are done.
void FairShare::fill() {
  ++round_;
  touched_.clear();
  heap_.clear();
  for (const int32_t flow : members_) {
    flows_[flow].filled = false;
    for (const int32_t link : network_.path(flow)) {
      if (links_[link].round == round_) continue;
      links_[link].round = round_;
      touched_.push_back(link);
    }
  }
  for (const int32_t link : touched_) {
    prepare(link);
    heap_.emplace_back(links_[link].left / links_[link].weight, link);
  }
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const auto [expected, id] = heap_.back();
    heap_.pop_back();
    LinkState& link = links_[id];
    if (link.waiting == 0) continue;
    if (link.weight < 1e-6 * link.first_weight) reweigh(link);
    // A share only grows while others fill up, so a stale one comes early, never late.
    const double level = link.left / link.weight;
    if (level <= expected * (1 + kSameRate)) {
      fill_up(id, level);
    } else {
      heap_.emplace_back(level, id);
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    }
  }
}

// Subtracting large weights leaves nothing exact of small ones: count those that wait afresh.
void FairShare::reweigh(LinkState& link) {
  link.weight = 0;
  for (const Place& place : link.places) {
    if (!flows_[place.flow].filled) link.weight += flows_[place.flow].weight;
  }
  link.first_weight = link.weight;
}

void FairShare::fill_up(int32_t id, double level) {
  links_[id].level = level;
  for (const Place& place : links_[id].places) {
    FlowState& flow = flows_[place.flow];
    if (flow.filled) continue;
    flow.filled = true;
    flow.level = level;
    flow.target = level * flow.weight;
    flow.bottleneck = id;
    for (const int32_t other : network_.path(place.flow)) {
      LinkState& link = links_[other];
      link.left = std::max(0.0, link.left - flow.target);
      link.weight -= flow.weight;
      --link.waiting;
    }
  }
}

void FairShare::commit(std::vector<int32_t>& changed) {
  for (const int32_t id : members_) {
    FlowState& flow = flows_[id];
    flow.member = false;
    if (std::abs(flow.target - flow.rate) <= kSameRate * std::max(flow.target, flow.rate)) {
      flow.target = flow.rate;
      flow.level = flow.rate / flow.weight;
      continue;
    }
    flow.rate = flow.target;
    changed.push_back(id);
    for (const int32_t link : network_.path(id)) touch(link);
  }
}

}  // namespace theseus::flowsim
