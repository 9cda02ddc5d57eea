// Waiting, in one place: advance until done; spin, then yield, then sleep; look for failure meanwhile.
#pragma once

#include <sched.h>

#include <algorithm>

#include "base/clock.h"
#include "runtime/impl.h"

namespace theseus {

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Longest time that a waiter yields the core again and again before it sleeps. With more ranks than cores it is short:
// where ranks are in sessions of their own (torchrun), Linux's autogroups keep a yield from reaching the others at all.
inline constexpr uint64_t kYieldNs = 200'000;
inline constexpr uint64_t kCrowdedYieldNs = 50'000;
// A look in vain over TCP is a system call for every connection; after these many the kernel does the waiting.
inline constexpr int kNetworkLooks = 40;
// Who waits longer says so to the others.
inline constexpr uint64_t kLongWaitNs = 1'000'000'000;
inline constexpr int kEagerLooks = 64;  // looks without a pause between them

// The slow half of waiting. `idle` counts looks in vain.
class Patience {
 public:
  explicit Patience(Communicator::Impl& impl) : impl_(impl) {}
  ~Patience() {
    if (reported_) impl_.report_waiting(false);
  }
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

  void progressed() {
    idle_ = 0;
    yielding_since_ = 0;
  }

  // Called after each look in vain; not ok ends the wait.
  template <class Ready>
  Status pause(Ready&& ready) {
    ++idle_;
    if (idle_ < (network() ? std::min(impl_.spins, kNetworkLooks) : impl_.spins)) {
      if (idle_ > kEagerLooks) relax();
      return {};
    }
    THESEUS_TRY(impl_.check_alive());
    const uint64_t now = now_ns();
    if (yielding_since_ == 0) {
      yielding_since_ = now;
      if (waiting_since_ == 0) waiting_since_ = now;
    }
    if (!reported_ && now - waiting_since_ > kLongWaitNs) {
      reported_ = true;
      impl_.report_waiting(true);
    }
    const double timeout = impl_.timeout.load(std::memory_order_relaxed);
    if (timeout > 0 && static_cast<double>(now - waiting_since_) > timeout * 1e9) {
      return Status::timeout("no end after " + std::to_string(timeout) + " s (THESEUS_TIMEOUT)");
    }
    if (now - yielding_since_ < (impl_.crowded ? kCrowdedYieldNs : kYieldNs) && !network()) {
      sched_yield();
    } else if (impl_.links != nullptr) {
      impl_.links->sleep(ready, now - yielding_since_);
    } else {
      nap(now - yielding_since_);
    }
    return {};
  }

 private:
  bool network() const { return impl_.links != nullptr && impl_.links->uses_network(); }

  Communicator::Impl& impl_;
  int idle_ = 0;
  uint64_t yielding_since_ = 0;
  uint64_t waiting_since_ = 0;
  bool reported_ = false;
};

// Advances until Done. `advance` returns Advance; after Failed, `why` gives the Status.
template <class AdvanceFunction, class WhyFunction>
Status drive(Communicator::Impl& impl, AdvanceFunction&& advance, WhyFunction&& why) {
  Patience patience(impl);
  const bool network = impl.links != nullptr && impl.links->uses_network();
  for (;;) {
    Advance state = advance();
    if (state == Advance::Done)
      return network ? impl.links->flush(Deadline::never().with_cancel(&impl.failed)) : Status();
    if (state == Advance::Failed) return why();
    if (network) THESEUS_TRY(impl.links->progress());
    if (state == Advance::Progressed) {
      patience.progressed();
      continue;
    }
    bool moved = false;
    THESEUS_TRY(patience.pause([&] {
      state = advance();
      return moved = state != Advance::Blocked;
    }));
    if (!moved) continue;
    if (state == Advance::Done)
      return network ? impl.links->flush(Deadline::never().with_cancel(&impl.failed)) : Status();
    if (state == Advance::Failed) return why();
    patience.progressed();
  }
}

}  // namespace theseus
