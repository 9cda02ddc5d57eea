// Plans from outside: every rank brings the same plan file, the lowest rank of each host proves it, all or none take
// it.
#include <algorithm>
#include <tuple>

#include "base/env.h"
#include "compiler/verify.h"
#include "net/wire.h"
#include "runtime/impl.h"
#include "schedule/bytes.h"
#include "schedule/places.h"

namespace theseus {
namespace {

constexpr uint64_t kOffer = 0x4e414c5044414f4c;  // "LOADPLAN": tells this exchange from others on the star
constexpr size_t kLongestReason = 4096;

// What one rank makes of the file. The properties are known to those who verified it: rank 0 is one of them.
struct Verdict {
  Status status;
  bool in_place = false;
  bool out_of_place = false;
  bool any_count = false;
  bool scales = false;
};

std::string encode(const Verdict& verdict) {
  WireWriter out;
  out.number(static_cast<int32_t>(verdict.status.code()));
  out.number(static_cast<uint8_t>(verdict.in_place));
  out.number(static_cast<uint8_t>(verdict.out_of_place));
  out.number(static_cast<uint8_t>(verdict.any_count));
  out.number(static_cast<uint8_t>(verdict.scales));
  out.text(verdict.status.message().substr(0, kLongestReason));
  return out.take();
}

Verdict decode(const std::string& blob) {
  WireReader in(blob);
  const auto code = in.number<int32_t>();
  Verdict verdict;
  verdict.in_place = in.number<uint8_t>() != 0;
  verdict.out_of_place = in.number<uint8_t>() != 0;
  verdict.any_count = in.number<uint8_t>() != 0;
  verdict.scales = in.number<uint8_t>() != 0;
  const std::string reason = in.text();
  if (!in.at_end() || code < 0 || code > static_cast<int32_t>(Code::Timeout)) {
    verdict.status = Status::internal("sent a malformed verdict");
  } else if (code != 0) {
    verdict.status = {static_cast<Code>(code), reason};
  }
  return verdict;
}

// Slots that a sender can count on: a receiver may keep up to half of them to itself for a while after it released
// them (RecvPort::release), unless there are so few that half of them is one.
int dependable_slots(const std::vector<Peer>& peers) {
  uint32_t slots = kMaxSlots;
  for (const Peer& peer : peers) slots = std::min(slots, peer.slots);
  return static_cast<int>(slots < 4 ? slots : slots - slots / 2);
}

Verdict prove(const std::string& file, int slots) {
  Verdict verdict;
  Result<Plan> whole = parse_plan(file);
  if (!whole.ok()) {
    verdict.status = whole.status();
    return verdict;
  }
  VerifyOptions options;
  options.slots = slots;
  options.any_count = true;
  const bool has_in_place = whole->collective != Collective::AllToAll;
  verdict.in_place = has_in_place;
  verdict.out_of_place = verdict.any_count = verdict.scales = true;
  if (verify(*whole, options).ok()) return verdict;
  // Not right for everything; what is left of it?
  options.any_count = options.scaled_input = false;
  verdict.status = verify(*whole, options);
  if (!verdict.status.ok()) {
    options.out_of_place = false;
    verdict.in_place = has_in_place && verify(*whole, options).ok();
    options.in_place = false;
    options.out_of_place = true;
    verdict.out_of_place = verify(*whole, options).ok();
    if (!verdict.in_place && !verdict.out_of_place) return verdict;
    verdict.status = {};
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

// Gives every connection a FIFO of its own: plans number rails and channels as they like, hosts have so many rails, and
// inside a host there are none. Both ends have the same connections, so both count alike.
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
    if (channel >= kMostShmChannels) {
      const auto [src, dst] =
          connection->outgoing ? std::pair(part.rank, connection->peer) : std::pair(connection->peer, part.rank);
      return Status::usage("more than " + std::to_string(kMostShmChannels - 1) + " connections from rank " +
                           std::to_string(src) + " to rank " + std::to_string(dst));
    }
    previous = here;
    connection->rail = std::get<2>(here);
    connection->channel = channel;
  }
  return {};
}

bool is_first_of_host(const Topology& topology, int rank) {
  const auto& hosts = topology.host_of_rank;
  return std::find(hosts.begin(), hosts.end(), hosts[static_cast<size_t>(rank)]) - hosts.begin() == rank;
}

Status compare_offers(const std::vector<std::string>& offers) {
  uint64_t first_size = 0, first_digest = 0;
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    WireReader in(offers[rank]);
    const auto magic = in.number<uint64_t>();
    const auto size = in.number<uint64_t>();
    const auto digest = in.number<uint64_t>();
    if (!in.at_end() || magic != kOffer) {
      return Status::usage("load_plan: rank " + std::to_string(rank) + " is in another call");
    }
    if (rank == 0) {
      first_size = size;
      first_digest = digest;
    } else if (size != first_size || digest != first_digest) {
      return Status::argument("load_plan: rank 0 gave a plan of " + std::to_string(first_size) + " bytes, rank " +
                              std::to_string(rank) + " another one, of " + std::to_string(size) +
                              " bytes; all ranks must give the same");
    }
  }
  return {};
}

}  // namespace

Result<LoadedPlan> Communicator::Impl::load_plan(const std::string& file) {
  THESEUS_TRY(usable());
  const Deadline deadline = Deadline::after(settings::init_timeout()).with_cancel(&failed);
  // A rank that does not answer leaves the star out of step, so that the communicator is done for.
  const auto exchange = [&](const std::string& blob) -> Result<std::vector<std::string>> {
    if (star == nullptr) return std::vector<std::string>{blob};
    Result<std::vector<std::string>> all = star->all_gather(blob, deadline);
    if (!all.ok()) return fail(all.status());
    return all;
  };
  WireWriter offer;
  offer.number(kOffer).number(static_cast<uint64_t>(file.size())).number(hash_bytes(file.data(), file.size()));
  Result<std::vector<std::string>> offers = exchange(offer.take());
  if (!offers.ok()) return offers.status();
  THESEUS_TRY(compare_offers(*offers));

  Verdict own;
  LoadedPlan description;
  PreparedPlan prepared;
  own.status = take_part(file, description, prepared);
  if (own.status.ok() && is_first_of_host(topology, self->rank())) own = prove(file, dependable_slots(peers));
  Result<std::vector<std::string>> verdicts = exchange(encode(own));
  if (!verdicts.ok()) return verdicts.status();
  for (size_t rank = 0; rank < verdicts->size(); ++rank) {
    const Status status = decode((*verdicts)[rank]).status;
    if (!status.ok()) return Status(status.code(), "load_plan, rank " + std::to_string(rank) + ": " + status.message());
  }
  const Verdict known = decode((*verdicts)[0]);
  description.in_place = known.in_place;
  description.out_of_place = known.out_of_place;
  description.any_count = known.any_count;
  description.scales = known.scales;
  return plans->add_loaded(std::move(description), std::move(prepared));
}

// This rank's section of the file, ready to run.
Status Communicator::Impl::take_part(const std::string& file, LoadedPlan& description, PreparedPlan& prepared) {
  Result<Plan> plan = parse_plan_of_rank(file, self->rank());
  if (!plan.ok()) return plan.status();
  if (plan->ranks != self->ranks()) {
    return Status::argument("plan '" + plan->name + "' is for " + std::to_string(plan->ranks) +
                            " ranks, this communicator has " + std::to_string(self->ranks()));
  }
  if (plan->rank_plans.size() != 1) {
    return Status::argument("plan '" + plan->name + "' has no part for rank " + std::to_string(self->rank()));
  }
  RankPlan& part = plan->rank_plans.front();
  description.name = plan->name;
  description.collective = plan->collective;
  description.root = plan->root;
  description.chunks_per_block = plan->chunks_per_block;
  description.thread_blocks = static_cast<int>(part.thread_blocks.size());
  description.connections = static_cast<int>(part.connections.size());
  if (Status placed = place_connections(part, topology); !placed.ok()) {
    return Status(placed.code(), "plan '" + plan->name + "': " + placed.message());
  }
  return plans->resolve(*plan, /*share_slots=*/false, prepared);
}

Result<LoadedPlan> Communicator::load_plan(const std::string& file) {
  if (group_depth() > 0) return Status::usage("load_plan cannot be part of a group");
  impl_->progress.drain();
  const std::lock_guard lock(impl_->running);
  return impl_->load_plan(file);
}

}  // namespace theseus
