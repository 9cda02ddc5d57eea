// Runs a communicator's asynchronous work, in order. The thread starts with the first piece of work.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/communicator.h"

namespace theseus {

class ProgressThread {
 public:
  ~ProgressThread() { stop(); }

  // `run` is called on the thread; its Status becomes the work's.
  std::shared_ptr<Work> submit(std::function<Status()> run);
  // Nothing queued and nothing running: a caller may run its request itself without overtaking.
  bool idle() const { return pending_.load(std::memory_order_acquire) == 0; }
  // Waits until idle.
  void drain();
  // Lets the running piece end, drops the rest (their status: InvalidUsage), ends the thread. Idempotent.
  void stop();

 private:
  class QueuedWork;
  void main();

  std::atomic<size_t> pending_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<QueuedWork>> queue_;
  std::thread thread_;
  bool stopping_ = false;
};

// Work that is over already.
std::shared_ptr<Work> finished_work(const Status& status);

}  // namespace theseus
