#include "base/owned_mutex.h"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace theseus {
namespace {

#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer does not know membarrier, and would take the owner's plain stores for races.
bool has_membarrier() { return false; }
#else
bool has_membarrier() {
  static const bool registered = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
  return registered;
}
#endif

constexpr int kYields = 100;
constexpr timespec kNap{0, 100'000};

}  // namespace

void OwnedMutex::lock_shared_way() {
  mutex_.lock();
  if (shared_) return;
  const uintptr_t owner = owner_.load(std::memory_order_relaxed);
  if (owner == 0 && has_membarrier()) {
    // Held through mutex_ this once; owned from the next time on.
    owner_.store(self(), std::memory_order_relaxed);
    return;
  }
  shared_ = true;
  if (owner == 0) return;
  owner_.store(0, std::memory_order_relaxed);
  syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
  // From here on the owner comes by mutex_; it may still be inside, for as long as a request takes.
  for (int looks = 0; inside_.load(std::memory_order_acquire); ++looks) {
    if (looks < kYields) {
      sched_yield();
    } else {
      nanosleep(&kNap, nullptr);
    }
  }
  by_owner_ = false;
}

}  // namespace theseus
