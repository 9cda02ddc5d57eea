// One thread that waits for everybody: epoll, timers, and functions posted from other threads.
//
// Callbacks run on the loop's thread, one at a time, and must not block. Functions here may be called from any thread;
// off the loop's thread they take effect in order, a moment later. So a callback must own what it touches (shared_ptr),
// and a watched descriptor is closed by a function posted after unwatch().
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

struct epoll_event;

namespace theseus {

class EventLoop {
 public:
  using TimerId = uint64_t;

  // Starts the thread "theseus-watch" with all signals blocked. SystemError: no descriptors or threads left.
  static Result<EventLoop*> start();

  void post(std::function<void()> function);
  // Runs `function` on the loop's thread and waits for it. On that thread: at once.
  void run(const std::function<void()>& function);

  // Calls every `period` seconds until removed. Late calls are not made up for.
  TimerId add_timer(double period, std::function<void()> function);
  void remove_timer(TimerId timer);

  // `events`: EPOLLIN, EPOLLOUT; level-triggered. One watch per descriptor.
  void watch(int fd, uint32_t events, std::function<void(uint32_t)> function);
  void change(int fd, uint32_t events);
  void unwatch(int fd);

  bool on_thread() const;

 private:
  struct Watch {
    int fd;
    std::function<void(uint32_t)> function;
  };
  struct Timer {
    uint64_t period_ns;
    uint64_t due_ns;
    std::function<void()> function;
  };

  EventLoop() = default;
  static void* thread_main(void* self);
  void main();
  void dispatch(const epoll_event* events, int count);
  void wake();
  void run_posted();
  void run_timers();
  int wait_milliseconds() const;
  void on_loop(std::function<void()> function);

  Fd epoll_;
  Fd wake_;
  std::mutex mutex_;  // guards posted_
  std::vector<std::function<void()>> posted_;
  std::atomic<TimerId> next_timer_{1};
  // The loop's thread alone touches what follows.
  uint64_t next_watch_ = 1;
  std::map<uint64_t, std::shared_ptr<Watch>> watches_;
  std::map<int, uint64_t> watch_of_fd_;
  std::map<TimerId, std::shared_ptr<Timer>> timers_;
};

}  // namespace theseus
