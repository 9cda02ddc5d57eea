#include "runtime/outside_plan.h"

#include <algorithm>
#include <tuple>

#include "compiler/verify.h"
#include "runtime/links.h"

namespace theseus {

int dependable_slots(const std::vector<Peer>& peers) {
  uint32_t slots = kMaxSlots;
  for (const Peer& peer : peers) slots = std::min(slots, peer.slots);
  return static_cast<int>(slots < 4 ? slots : slots - slots / 2);
}

Result<PlanProperties> prove(const std::string& file, int slots) {
  PlanProperties verdict;
  Result<Plan> whole = parse_plan(file);
  if (!whole.ok()) return whole.status();
  VerifyOptions options;
  options.slots = slots;
  options.any_count = true;
  const bool has_in_place = whole->collective != Collective::AllToAll;
  verdict.in_place = has_in_place;
  verdict.out_of_place = verdict.any_count = verdict.scales = true;
  if (verify(*whole, options).ok()) return verdict;
  // Not right for everything; what is left of it?
  options.any_count = options.scaled_input = false;
  if (Status refused = verify(*whole, options); !refused.ok()) {
    options.out_of_place = false;
    verdict.in_place = has_in_place && verify(*whole, options).ok();
    options.in_place = false;
    options.out_of_place = true;
    verdict.out_of_place = verify(*whole, options).ok();
    if (!verdict.in_place && !verdict.out_of_place) return refused;
  }
  options.in_place = verdict.in_place;
  options.out_of_place = verdict.out_of_place;
  options.any_count = true;
  verdict.any_count = verify(*whole, options).ok();
  options.any_count = false;
  options.scaled_input = true;
  verdict.scales = verify(*whole, options).ok();
  return verdict;
}

Status place_connections(RankPlan& part, const Topology& topology) {
  const int own_host = topology.host_of_rank[static_cast<size_t>(part.rank)];
  const auto rail_of = [&](const Connection& c) {
    const bool is_local = topology.host_of_rank[static_cast<size_t>(c.peer)] == own_host;
    return static_cast<int16_t>(is_local ? 0 : c.rail % topology.rails);
  };
  std::vector<Connection*> sorted;
  for (Connection& connection : part.connections) sorted.push_back(&connection);
  std::sort(sorted.begin(), sorted.end(), [&](const Connection* a, const Connection* b) {
    return std::tuple(a->peer, a->outgoing, rail_of(*a), a->rail, a->channel) <
           std::tuple(b->peer, b->outgoing, rail_of(*b), b->rail, b->channel);
  });
  std::tuple<int32_t, bool, int16_t> previous{-1, false, 0};
  int16_t channel = 0;
  for (Connection* connection : sorted) {
    const std::tuple here(connection->peer, connection->outgoing, rail_of(*connection));
    channel = here != previous ? int16_t{0} : static_cast<int16_t>(channel == 0 ? kShmChannels : channel + 1);
    if (channel >= kMostShmChannels - 1) {  // the last one is Mailboxes'
      const auto [src, dst] =
          connection->outgoing ? std::pair(part.rank, connection->peer) : std::pair(connection->peer, part.rank);
      return Status::usage("more than " + std::to_string(kMostShmChannels - 2) + " connections from rank " +
                           std::to_string(src) + " to rank " + std::to_string(dst));
    }
    previous = here;
    connection->rail = std::get<2>(here);
    connection->channel = channel;
  }
  return {};
}

}  // namespace theseus
