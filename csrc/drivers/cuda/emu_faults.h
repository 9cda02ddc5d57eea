// Faults that tests switch on in an emulator. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace theseus::cuda {

class EmulatorFaults {
 public:
  // The next `count` calls fail, after `after` that do not.
  void fail_allocations(int after, int count) { allocations_.arm(after, count); }
  void fail_launches(int after, int count) { launches_.arm(after, count); }
  // As if there were no compiler for kernels.
  void fail_compilers(int after, int count) { compilers_.arm(after, count); }
  // As if a kernel had crashed: the next launch on `device` is taken and does nothing; from the time it would have run,
  // every call on the device fails.
  void crash_next_kernel(int device);
  // Each piece of work on streams of `device` starts so much later.
  void slow_streams(int device, std::chrono::microseconds delay);
  // Neither device reaches the other.
  void refuse_peers(int a, int b);

  // For the emulator.
  bool takes_allocation() { return allocations_.takes(); }
  bool takes_launch() { return launches_.takes(); }
  bool takes_compiler() { return compilers_.takes(); }
  bool takes_crash(int device);
  std::chrono::microseconds delay(int device) const;
  bool peers_refused(int a, int b) const;

 private:
  class Countdown {
   public:
    void arm(int after, int count);
    bool takes();  // whether this call fails

   private:
    std::mutex mutex_;
    int after_ = 0;
    int count_ = 0;
  };

  Countdown allocations_;
  Countdown launches_;
  Countdown compilers_;
  mutable std::mutex mutex_;
  std::set<int> crashes_;
  std::set<std::pair<int, int>> refused_;
  std::atomic<int> slow_device_{-1};
  std::atomic<int64_t> delay_us_{0};
};

}  // namespace theseus::cuda
