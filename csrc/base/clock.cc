#include "base/clock.h"

#include <time.h>

#include <algorithm>

namespace theseus {

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

Deadline Deadline::after(double seconds) {
  // A century is as good as never, and keeps the sum below from overflowing.
  if (!(seconds >= 0) || seconds > 3e9) return never();
  return Deadline(now_ns() + static_cast<uint64_t>(seconds * 1e9));
}

Deadline Deadline::with_cancel(const std::atomic<bool>* flag) const {
  Deadline copy = *this;
  copy.cancel_ = flag;
  return copy;
}

double Deadline::remaining() const {
  if (end_ns_ == UINT64_MAX) return 1e18;
  const uint64_t now = now_ns();
  return now >= end_ns_ ? 0.0 : static_cast<double>(end_ns_ - now) * 1e-9;
}

int Deadline::poll_milliseconds() const {
  if (cancelled()) return 0;
  const int slice = cancel_ != nullptr ? 50 : -1;
  if (end_ns_ == UINT64_MAX) return slice;
  // Rounded up, so that a poll does not spin through the last millisecond.
  const int left = static_cast<int>(std::min(remaining() * 1e3 + 1, 1e9));
  return slice < 0 ? left : std::min(left, slice);
}

Deadline Deadline::at_most(double seconds) const {
  Deadline other = after(seconds);
  other.cancel_ = cancel_;
  other.end_ns_ = std::min(other.end_ns_, end_ns_);
  return other;
}

Deadline Deadline::plus(double seconds) const {
  Deadline other = *this;
  if (!is_never()) other.end_ns_ += static_cast<uint64_t>(seconds * 1e9);
  return other;
}

Status Deadline::status(const std::string& what) const {
  if (cancelled()) return Status::usage(what + " was aborted");
  return Status::timeout(what + " did not finish in time");
}

}  // namespace theseus
