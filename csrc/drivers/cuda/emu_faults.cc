#include "drivers/cuda/emu_faults.h"

#include <algorithm>

namespace theseus::cuda {

void EmulatorFaults::Countdown::arm(int after, int count) {
  std::lock_guard lock(mutex_);
  after_ = after;
  count_ = count;
}

bool EmulatorFaults::Countdown::takes() {
  std::lock_guard lock(mutex_);
  if (count_ == 0) return false;
  if (after_ > 0) {
    --after_;
    return false;
  }
  --count_;
  return true;
}

void EmulatorFaults::crash_next_kernel(int device) {
  std::lock_guard lock(mutex_);
  crashes_.insert(device);
}

bool EmulatorFaults::takes_crash(int device) {
  std::lock_guard lock(mutex_);
  return crashes_.erase(device) > 0;
}

void EmulatorFaults::slow_streams(int device, std::chrono::microseconds delay) {
  delay_us_.store(delay.count());
  slow_device_.store(device);
}

std::chrono::microseconds EmulatorFaults::delay(int device) const {
  return std::chrono::microseconds(slow_device_.load() == device ? delay_us_.load() : 0);
}

void EmulatorFaults::refuse_peers(int a, int b) {
  std::lock_guard lock(mutex_);
  refused_.insert(std::minmax(a, b));
}

bool EmulatorFaults::peers_refused(int a, int b) const {
  std::lock_guard lock(mutex_);
  return refused_.count(std::minmax(a, b)) > 0;
}

}  // namespace theseus::cuda
