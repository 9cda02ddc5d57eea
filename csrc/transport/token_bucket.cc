#include "transport/token_bucket.h"

namespace theseus {
namespace {

constexpr uint64_t kLargestQuantum = 64 << 10;
constexpr uint64_t kSmallestQuantum = 4 << 10;
constexpr uint64_t kQuantumNs = 4'000'000;
constexpr uint64_t kBurstBytes = 256 << 10;  // outlasts a scheduling delay of 10 ms at 200 Mbit/s
constexpr uint64_t kShortestBurstNs = 2'000'000;
constexpr uint64_t kLongestBurstNs = 20'000'000;  // a slow NIC does not save up for long

// Time that `bytes` take at `rate`, within a century so that sums cannot overflow.
uint64_t duration_ns(uint64_t bytes, uint64_t rate) {
  const double ns = static_cast<double>(bytes) * 1e9 / static_cast<double>(rate);
  return static_cast<uint64_t>(std::min(ns + 0.5, 3e18));
}

}  // namespace

size_t TokenBucket::quantum() const {
  const uint64_t bytes_per_second = rate();
  if (bytes_per_second == 0) return SIZE_MAX;
  const double bytes = static_cast<double>(bytes_per_second) * kQuantumNs / 1e9;
  return static_cast<size_t>(std::clamp(bytes, double{kSmallestQuantum}, double{kLargestQuantum}));
}

void TokenBucket::charge(size_t bytes, uint64_t now) {
  const uint64_t bytes_per_second = rate();
  if (bytes_per_second == 0) return;
  const uint64_t cost = duration_ns(bytes, bytes_per_second);
  const uint64_t burst = std::clamp(duration_ns(kBurstBytes, bytes_per_second), kShortestBurstNs, kLongestBurstNs);
  const uint64_t earliest = now > burst ? now - burst : 0;
  uint64_t before = busy_until_.load(std::memory_order_relaxed);
  while (!busy_until_.compare_exchange_weak(before, std::max(before, earliest) + cost, std::memory_order_relaxed)) {
  }
}

void TokenBucket::set_rate(uint64_t bytes_per_second, uint64_t now) {
  const uint64_t old_rate = rate_.exchange(bytes_per_second, std::memory_order_relaxed);
  if (old_rate == bytes_per_second) return;
  uint64_t before = busy_until_.load(std::memory_order_relaxed);
  uint64_t after;
  do {
    after = now;
    if (before > now && old_rate != 0 && bytes_per_second != 0) {
      const double owed = static_cast<double>(before - now) * static_cast<double>(old_rate);
      after = now + static_cast<uint64_t>(std::min(owed / static_cast<double>(bytes_per_second), 3e18));
    }
  } while (!busy_until_.compare_exchange_weak(before, after, std::memory_order_relaxed));
}

}  // namespace theseus
