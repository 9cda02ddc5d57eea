#include "observe/tte_samples.h"

#include <algorithm>
#include <vector>

#include "base/random.h"

namespace theseus {
namespace {

// Between two samples; the gap follows by doubling and halving.
constexpr uint64_t kNearNs = 5'000'000;
constexpr uint64_t kFarNs = 20'000'000;
constexpr uint64_t kLargestGap = uint64_t{1} << 20;

}  // namespace

void TteSamples::begin(uint64_t id, uint64_t now_ns) {
  if (begun_ns_ != 0 && now_ns - begun_ns_ < kNearNs) gap_ = std::min(2 * gap_, kLargestGap);
  if (begun_ns_ != 0 && now_ns - begun_ns_ > kFarNs) gap_ = std::max<uint64_t>(gap_ / 2, 1);
  under_way_ = true;
  begun_ = static_cast<uint32_t>(id);
  begun_ns_ = now_ns;
  next_ = id + 1 + random_u64() % (2 * gap_ - 1);  // `gap_` requests later, on average
}

void TteSamples::end(uint32_t id, uint64_t now_ns) {
  if (under_way_ && begun_ == id) {
    const uint64_t count = count_.load(std::memory_order_relaxed);
    const uint64_t took = std::min<uint64_t>(now_ns - begun_ns_, UINT32_MAX);
    ring_[count % kKept].store(static_cast<uint32_t>(took), std::memory_order_relaxed);
    count_.store(count + 1, std::memory_order_release);
  }
  under_way_ = false;
}

TteQuantiles TteSamples::quantiles() const {
  TteQuantiles found;
  found.samples = count_.load(std::memory_order_acquire);
  const auto kept = static_cast<size_t>(std::min<uint64_t>(found.samples, kKept));
  if (kept == 0) return found;
  std::vector<uint32_t> sorted(kept);
  for (size_t i = 0; i < kept; ++i) sorted[i] = ring_[i].load(std::memory_order_relaxed);
  std::sort(sorted.begin(), sorted.end());
  found.p50_ns = sorted[(kept - 1) / 2];
  found.p99_ns = sorted[(kept - 1) * 99 / 100];
  return found;
}

}  // namespace theseus
