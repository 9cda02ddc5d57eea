// A mutex that costs its first user no locked instruction.
//
// On x86 a locked instruction waits until all earlier stores have left the core. After a message to another core that
// is as long as the message's cache line travels, so a std::mutex around a call would cost the call twice its time.
// Nearly every communicator is used by one thread only; that one owns the mutex and takes it with plain stores.
//
// The first thread to lock becomes the owner. When another comes, ownership ends for good and everybody takes an
// ordinary mutex. Owner and newcomer are a store and a load each, in opposite order; what keeps one from passing the
// other is membarrier(2) in the newcomer, which makes a barrier of wherever the owner is. Where the kernel has no
// membarrier, nobody becomes the owner.
#pragma once

#include <pthread.h>

#include <atomic>
#include <mutex>

namespace theseus {

class OwnedMutex {
 public:
  OwnedMutex() = default;
  OwnedMutex(const OwnedMutex&) = delete;
  OwnedMutex& operator=(const OwnedMutex&) = delete;

  void lock() {
    if (owner_.load(std::memory_order_relaxed) == self()) [[likely]] {
      inside_.store(true, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);  // the processor's half is the newcomer's membarrier
      if (owner_.load(std::memory_order_relaxed) == self()) [[likely]] {
        by_owner_ = true;
        return;
      }
      inside_.store(false, std::memory_order_release);
    }
    lock_shared_way();
  }
  void unlock() {
    if (by_owner_) [[likely]] {
      inside_.store(false, std::memory_order_release);
    } else {
      mutex_.unlock();
    }
  }

 private:
  static uintptr_t self() { return static_cast<uintptr_t>(pthread_self()); }
  void lock_shared_way();

  std::atomic<uintptr_t> owner_{0};  // pthread_self(); 0: nobody yet, or nobody any more
  std::atomic<bool> inside_{false};  // the owner holds it, or is about to find that it is owner no more
  bool by_owner_ = false;            // how it is held; written by who holds it
  bool shared_ = false;              // two threads have come, or there is no membarrier; under mutex_
  std::mutex mutex_;
};

}  // namespace theseus
