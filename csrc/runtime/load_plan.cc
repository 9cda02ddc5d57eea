// Plans from outside: every rank brings the same plan file, the lowest rank of each host proves it, all or none take
// it.
#include <algorithm>

#include "base/env.h"
#include "net/wire.h"
#include "runtime/impl.h"
#include "runtime/outside_plan.h"
#include "schedule/bytes.h"
#include "schedule/places.h"

namespace theseus {
namespace {

constexpr uint64_t kOffer = 0x4e414c5044414f4c;  // "LOADPLAN": tells this exchange from others on the star
constexpr size_t kLongestReason = 4096;

// What one rank makes of the file. The properties are known to those who verified it: rank 0 is one of them.
struct Verdict {
  Status status;
  PlanProperties properties;
};

std::string encode(const Verdict& verdict) {
  WireWriter out;
  out.number(static_cast<int32_t>(verdict.status.code()));
  out.number(static_cast<uint8_t>(verdict.properties.in_place));
  out.number(static_cast<uint8_t>(verdict.properties.out_of_place));
  out.number(static_cast<uint8_t>(verdict.properties.any_count));
  out.number(static_cast<uint8_t>(verdict.properties.scales));
  out.text(verdict.status.message().substr(0, kLongestReason));
  return out.take();
}

Verdict decode(const std::string& blob) {
  WireReader in(blob);
  const auto code = in.number<int32_t>();
  Verdict verdict;
  verdict.properties.in_place = in.number<uint8_t>() != 0;
  verdict.properties.out_of_place = in.number<uint8_t>() != 0;
  verdict.properties.any_count = in.number<uint8_t>() != 0;
  verdict.properties.scales = in.number<uint8_t>() != 0;
  const std::string reason = in.text();
  if (!in.at_end() || code < 0 || code > static_cast<int32_t>(Code::Timeout)) {
    verdict.status = Status::internal("sent a malformed verdict");
  } else if (code != 0) {
    verdict.status = {static_cast<Code>(code), reason};
  }
  return verdict;
}

Verdict verdict_on(const std::string& file, int slots) {
  Result<PlanProperties> proven = prove(file, slots);
  return proven.ok() ? Verdict{{}, *proven} : Verdict{proven.status(), {}};
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
  Plan part;
  own.status = take_part(file, description, part);
  if (own.status.ok() && is_first_of_host(topology, self->rank())) own = verdict_on(file, dependable_slots(peers));
  Result<std::vector<std::string>> verdicts = exchange(encode(own));
  if (!verdicts.ok()) return verdicts.status();
  for (size_t rank = 0; rank < verdicts->size(); ++rank) {
    const Status status = decode((*verdicts)[rank]).status;
    if (!status.ok()) return Status(status.code(), "load_plan, rank " + std::to_string(rank) + ": " + status.message());
  }
  const PlanProperties known = decode((*verdicts)[0]).properties;
  description.in_place = known.in_place;
  description.out_of_place = known.out_of_place;
  description.any_count = known.any_count;
  description.scales = known.scales;
  return plans->add_loaded(std::move(description), std::move(part));
}

// This rank's section of the file, once it has been found to run here.
Status Communicator::Impl::take_part(const std::string& file, LoadedPlan& description, Plan& plan) {
  Result<Plan> parsed = parse_plan_of_rank(file, self->rank());
  if (!parsed.ok()) return parsed.status();
  plan = std::move(*parsed);
  if (plan.ranks != self->ranks()) {
    return Status::argument("plan '" + plan.name + "' is for " + std::to_string(plan.ranks) +
                            " ranks, this communicator has " + std::to_string(self->ranks()));
  }
  if (plan.rank_plans.size() != 1) {
    return Status::argument("plan '" + plan.name + "' has no part for rank " + std::to_string(self->rank()));
  }
  RankPlan& part = plan.rank_plans.front();
  description.name = plan.name;
  description.collective = plan.collective;
  description.root = plan.root;
  description.chunks_per_block = plan.chunks_per_block;
  description.thread_blocks = static_cast<int>(part.thread_blocks.size());
  description.connections = static_cast<int>(part.connections.size());
  if (Status placed = place_connections(part, topology); !placed.ok()) {
    return Status(placed.code(), "plan '" + plan.name + "': " + placed.message());
  }
  return plans->try_out(plan);
}

Result<LoadedPlan> Communicator::load_plan(const std::string& file) {
  if (group_depth() > 0) return Status::usage("load_plan cannot be part of a group");
  impl_->progress.drain();
  const std::lock_guard lock(impl_->running);
  return impl_->load_plan(file);
}

}  // namespace theseus
