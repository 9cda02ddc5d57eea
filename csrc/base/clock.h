// Monotonic time and deadlines. A deadline may carry a cancel flag, so that abort can end any wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace theseus {

// Nanoseconds of CLOCK_MONOTONIC.
uint64_t now_ns();

class Deadline {
 public:
  // Without an end.
  static Deadline never() { return Deadline(UINT64_MAX); }
  // `seconds` from now; negative: never.
  static Deadline after(double seconds);

  // The same deadline, which also ends when *flag turns true. The flag must outlive every wait under it.
  Deadline with_cancel(const std::atomic<bool>* flag) const;

  bool cancelled() const { return cancel_ != nullptr && cancel_->load(std::memory_order_acquire); }
  bool expired() const { return cancelled() || (end_ns_ != UINT64_MAX && now_ns() >= end_ns_); }
  bool is_never() const { return end_ns_ == UINT64_MAX; }
  // Seconds left, never below 0; a huge value for never().
  double remaining() const;
  // What to give poll(): at most 50 ms where a cancel flag has to be looked at, -1 for never.
  int poll_milliseconds() const;
  // The earlier of this deadline and `seconds` from now.
  Deadline at_most(double seconds) const;
  // The same deadline, `seconds` later.
  Deadline plus(double seconds) const;
  // Why waiting for `what` ended: Timeout, or InvalidUsage after a cancel.
  Status status(const std::string& what) const;

 private:
  explicit Deadline(uint64_t end_ns) : end_ns_(end_ns) {}
  uint64_t end_ns_;
  const std::atomic<bool>* cancel_ = nullptr;
};

}  // namespace theseus
