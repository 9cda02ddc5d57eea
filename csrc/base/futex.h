// Sleeping on a 32-bit word that may lie in memory shared between processes.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace theseus {

static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);

// Sleeps while `word` holds `expected`, at most `timeout_ns` (negative: for ever). Returns false on timeout only;
// true may be spurious, so that callers look again.
inline bool futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns) {
  timespec timeout{timeout_ns / 1000000000, timeout_ns % 1000000000};
  const long result = syscall(SYS_futex, &word, FUTEX_WAIT, expected, timeout_ns < 0 ? nullptr : &timeout, nullptr, 0);
  return result == 0 || errno != ETIMEDOUT;
}

// Wakes at most `waiters` sleepers. The caller has changed the word before.
inline void futex_wake(std::atomic<uint32_t>& word, int waiters = INT32_MAX) {
  syscall(SYS_futex, &word, FUTEX_WAKE, waiters, nullptr, nullptr, 0);
}

}  // namespace theseus
