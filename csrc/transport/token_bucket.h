// One direction of one virtual NIC: who may move bytes now, and when the next may.
//
// A virtual clock says until when the NIC is busy with what went before. Whoever finds it free moves up to a quantum
// and charges what it moved, so the long-term rate is exact however many ports and processes take part, and however
// late they wake up: an idle NIC saves up to a burst. Lives in shared memory; all zero is valid and means unlimited.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace theseus {

class TokenBucket {
 public:
  // `now`: nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
  bool open(uint64_t now) const { return rate() == 0 || busy_until_.load(std::memory_order_relaxed) <= now; }
  // When it opens again; in the past where it is open.
  uint64_t due() const { return rate() == 0 ? 0 : busy_until_.load(std::memory_order_relaxed); }
  // Most bytes to move before looking again: small enough that ports take turns, large enough to be cheap.
  size_t quantum() const;
  void charge(size_t bytes, uint64_t now);

  // Bytes per second; 0: unlimited. Takes effect at once: time already owed is scaled to the new rate.
  void set_rate(uint64_t bytes_per_second, uint64_t now);
  uint64_t rate() const { return rate_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> rate_;
  std::atomic<uint64_t> busy_until_;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace theseus
