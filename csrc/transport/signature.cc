#include "transport/port.h"

namespace theseus {

static_assert(kRequestFactor * kRequestFactorInverse == 1u);

uint32_t base_hash(const RequestSignature& s) {
  uint64_t h = s.count * 0x9e3779b97f4a7c15ull;
  h ^= (uint64_t(uint32_t(s.root)) << 32 | uint64_t(s.plan)) * 0xc2b2ae3d27d4eb4full;
  h ^= (uint64_t(s.collective) << 16 | uint64_t(s.type) << 8 | uint64_t(s.op)) * 0x165667b19e3779f9ull;
  h ^= h >> 29;
  h *= 0xbf58476d1ce4e5b9ull;
  return static_cast<uint32_t>(h >> 32);
}

std::string describe(const RequestSignature& s) {
  std::string text = name_of(s.collective);
  text += " of " + std::to_string(s.count) + " " + name_of(s.type);
  if (s.collective == Collective::AllReduce || s.collective == Collective::ReduceScatter ||
      s.collective == Collective::Reduce) {
    text += std::string(", ") + name_of(s.op);
  }
  const bool rooted = s.collective == Collective::Broadcast || s.collective == Collective::Reduce ||
                      s.collective == Collective::Gather || s.collective == Collective::Scatter;
  if (rooted) text += ", root " + std::to_string(s.root);
  if ((s.plan & kLoadedPlan) != 0) {
    const int number = s.plan - kLoadedPlan;
    text += number < kScheduledPlan ? ", loaded plan " + std::to_string(number)
                                    : ", schedule " + std::to_string(number - kScheduledPlan);
  }
  if (s.collective != Collective::SendRecv) text += ", request " + std::to_string(s.request);
  return text;
}

Status mismatch(const RequestSignature& own, const RequestSignature& other) {
  return Status::usage("mismatched calls: rank " + std::to_string(own.rank) + " runs " + describe(own) + ", but rank " +
                       std::to_string(other.rank) + " runs " + describe(other));
}

}  // namespace theseus
