#include "executor/residency.h"

#include <algorithm>
#include <string>
#include <utility>

namespace theseus {

Residency& Residency::of(cuda::Driver& driver, int device) {
  static std::mutex& mutex = *new std::mutex;
  static auto& all = *new std::map<std::pair<cuda::Driver*, int>, std::unique_ptr<Residency>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Residency>& found = all[{&driver, device}];
  if (found == nullptr) found = std::make_unique<Residency>(driver, device);
  return *found;
}

std::unique_ptr<Residency::Member> Residency::join(const DeviceSharers& sharers) {
  const std::lock_guard lock(mutex_);
  // Communicators of one rank have no id to tell them apart.
  auto found = std::find_if(claims_.begin(), claims_.end(), [&](const Claim& claim) {
    return sharers.ranks > 1 && claim.sharers.ranks > 1 && claim.sharers.communicator == sharers.communicator;
  });
  if (found == claims_.end()) found = claims_.insert(claims_.end(), Claim{.sharers = sharers});
  auto member = std::unique_ptr<Member>(new Member(*this, *found));
  member->passed_ = found->gates;
  found->members.insert(member.get());
  return member;
}

uint64_t Residency::limit() const {
  uint64_t limit = kWhole;
  for (const Claim& claim : claims_) {
    const auto here = static_cast<uint64_t>(claim.sharers.here);
    limit = std::min(limit, kWhole * here / static_cast<uint64_t>(claim.sharers.ranks));
  }
  return limit;
}

// Rounded up for each rank, so that a sum that fits is one that does.
uint64_t Residency::need(const Claim& claim, uint64_t blocks, uint64_t resident) const {
  if (resident == 0) return blocks == 0 ? 0 : 2 * kWhole;
  // A process that has more of the communicator's ranks here than its share of the limit counts would not help it.
  return blocks * static_cast<uint64_t>(claim.sharers.here) * kWhole / resident +
         (blocks * static_cast<uint64_t>(claim.sharers.here) * kWhole % resident != 0 ? 1 : 0);
}

Residency::Member::~Member() {
  const std::lock_guard lock(all_.mutex_);
  for (Claim& other : all_.claims_) std::erase_if(other.gate, [this](const Event& gate) { return gate.whose == this; });
  claim_.members.erase(this);
  if (claim_.members.empty()) all_.claims_.remove_if([this](const Claim& claim) { return &claim == &claim_; });
}

bool Residency::Member::fits(uint64_t blocks, uint64_t resident) const {
  const std::lock_guard lock(all_.mutex_);
  return all_.need(claim_, blocks, resident) <= all_.limit();
}

Status Residency::Member::admit(uint64_t blocks, uint64_t resident, cuda::Stream stream, bool captured) {
  const std::lock_guard lock(all_.mutex_);
  const uint64_t need = all_.need(claim_, blocks, resident);
  uint64_t others = 0;
  uint64_t graphs = 0;
  for (const Claim& claim : all_.claims_) {
    if (&claim == &claim_) continue;
    others += std::max(claim.size, claim.captured);
    graphs += claim.captured;
  }
  if (need + graphs > all_.limit()) {
    return Status::usage("a request of " + std::to_string(blocks) +
                         " thread blocks does not fit on the GPU, of whose " + std::to_string(resident) +
                         " this process may use " + std::to_string(resident * all_.limit() / kWhole) +
                         (graphs > 0 ? ", some of them taken by captured graphs" : "") +
                         ": give every rank a GPU of its own, or choose a schedule with fewer (THESEUS_ALGO)");
  }
  if (captured) {
    claim_.captured = std::max(claim_.captured, need);
    return {};
  }
  if (need > claim_.size) {
    claim_.size = need;
    if (need + others > all_.limit()) {
      claim_.gate.clear();
      for (const Claim& claim : all_.claims_) {
        if (&claim == &claim_) continue;
        for (Member* member : claim.members)
          if (!member->under_way_.empty()) claim_.gate.push_back({member, member->under_way_.back()});
      }
      ++claim_.gates;
    }
  }
  if (passed_ == claim_.gates) return {};
  for (const Event& gate : claim_.gate) THESEUS_TRY(all_.driver_.wait(all_.device_, stream, gate.event));
  passed_ = claim_.gates;
  return {};
}

void Residency::Member::launched(cuda::Event event) {
  const std::lock_guard lock(all_.mutex_);
  under_way_.push_back(event);
}

void Residency::Member::left(cuda::Event event) {
  const std::lock_guard lock(all_.mutex_);
  std::erase(under_way_, event);
  for (Claim& other : all_.claims_) {
    std::erase_if(other.gate, [&](const Event& gate) { return gate.whose == this && gate.event == event; });
  }
  const auto idle = [](const Member* member) { return member->under_way_.empty(); };
  if (std::all_of(claim_.members.begin(), claim_.members.end(), idle)) claim_.size = 0;
}

void Residency::Member::forget_captured() {
  const std::lock_guard lock(all_.mutex_);
  claim_.captured = 0;
}

}  // namespace theseus
