// A thread of the process that does what must not hold up requests nor the watch thread: connecting, compiling.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace theseus {

class Worker {
 public:
  // Opens connections; may wait for a peer for seconds.
  static Worker& connector();
  // Makes plans ready.
  static Worker& preparer();

  // In order of posting. What `function` touches must be its own (shared_ptr): nobody waits for it.
  void post(std::function<void()> function);

 private:
  void main();

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> queue_;
  bool started_ = false;
};

}  // namespace theseus
