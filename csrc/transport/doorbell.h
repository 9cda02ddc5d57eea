// Sleeping and waking between processes, on the futex word of a RankPage.
//
// The waker reads `sleeping` without a fence after publishing its message: a fence would cost every message of every
// request. So a wake-up can be missed when both happen within one store's latency; the sleeper bounds its sleep
// (kLongestSleep), which bounds the loss.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "transport/segment.h"

namespace theseus {

inline constexpr long kLongestSleepNs = 500'000;

inline void ring(RankPage& page) {
  if (page.sleeping.load(std::memory_order_relaxed) == 0) [[likely]]
    return;
  page.doorbell.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &page.doorbell, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

// Sleeps until rung or kLongestSleepNs, unless `ready()` holds after the doorbell was armed.
template <class Ready>
void sleep_on(RankPage& page, Ready&& ready) {
  const uint32_t seen = page.doorbell.load(std::memory_order_acquire);
  // An exchange keeps the last look behind it, like a fence, which ThreadSanitizer would not understand.
  page.sleeping.exchange(1, std::memory_order_seq_cst);
  if (!ready()) {
    const timespec longest{0, kLongestSleepNs};
    syscall(SYS_futex, &page.doorbell, FUTEX_WAIT, seen, &longest, nullptr, 0);
  }
  page.sleeping.store(0, std::memory_order_relaxed);
}

}  // namespace theseus
