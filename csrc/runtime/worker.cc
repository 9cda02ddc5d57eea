#include "runtime/worker.h"

#include <pthread.h>

#include <csignal>
#include <thread>

namespace theseus {

// Never destroyed: their threads outlive static destructors.
Worker& Worker::connector() {
  static Worker& worker = *new Worker;
  return worker;
}

Worker& Worker::preparer() {
  static Worker& worker = *new Worker;
  return worker;
}

void Worker::post(std::function<void()> function) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(function));
    if (!started_) {
      started_ = true;
      // The application's signals are not for this thread.
      sigset_t all, before;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
      std::thread([this] { main(); }).detach();
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
  }
  posted_.notify_one();
}

void Worker::main() {
  for (;;) {
    std::function<void()> next;
    {
      std::unique_lock lock(mutex_);
      posted_.wait(lock, [this] { return !queue_.empty(); });
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    next();
  }
}

}  // namespace theseus
