// Room for TBs on an emulated GPU, where a test limits it: a launch whose TBs wait for each other starts when all fit,
// and launches start in the order in which they came. So it shows what a GPU would: kernels that wait for one that
// never gets its turn. Without a limit all fit.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace theseus::cuda {

class EmuRoom {
 public:
  // In TBs; 0: no limit. For launches that come from now on.
  void limit(uint64_t blocks) {
    const std::lock_guard lock(mutex_);
    limit_ = blocks;
  }
  // Waits its turn.
  void enter(uint64_t blocks) {
    std::unique_lock lock(mutex_);
    const uint64_t turn = came_++;
    changed_.wait(lock, [&] { return turn == turn_ && (limit_ == 0 || used_ == 0 || used_ + blocks <= limit_); });
    ++turn_;
    used_ += blocks;
    changed_.notify_all();
  }
  void leave(uint64_t blocks) {
    const std::lock_guard lock(mutex_);
    used_ -= blocks;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t limit_ = 0;
  uint64_t used_ = 0;
  uint64_t came_ = 0;
  uint64_t turn_ = 0;
};

}  // namespace theseus::cuda
