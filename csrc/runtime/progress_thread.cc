#include "runtime/progress_thread.h"

#include <pthread.h>
#include <signal.h>

#include <chrono>

namespace theseus {

class ProgressThread::QueuedWork final : public Work {
 public:
  explicit QueuedWork(std::function<Status()> run) : run_(std::move(run)) {}

  bool done() const override { return done_.load(std::memory_order_acquire); }

  Status wait(double seconds) override {
    if (done()) return status();
    std::unique_lock lock(mutex_);
    const auto over = [this] { return done(); };
    if (seconds < 0) {
      finished_.wait(lock, over);
    } else if (!finished_.wait_for(lock, std::chrono::duration<double>(std::min(seconds, 1e9)), over)) {
      return Status::timeout("the work is not done after " + std::to_string(seconds) + " s");
    }
    return status_;
  }

  Status status() const override {
    if (!done()) return {Code::InProgress, "operation in progress"};
    return status_;
  }

  void run() { finish(run_()); }

  void finish(const Status& status) {
    run_ = nullptr;
    {
      const std::lock_guard lock(mutex_);
      status_ = status;
      done_.store(true, std::memory_order_release);
    }
    finished_.notify_all();
  }

 private:
  std::function<Status()> run_;
  std::atomic<bool> done_{false};
  std::mutex mutex_;
  std::condition_variable finished_;
  Status status_;
};

std::shared_ptr<Work> ProgressThread::submit(std::function<Status()> run) {
  auto work = std::make_shared<QueuedWork>(std::move(run));
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) {
      work->finish(Status::usage("this communicator was destroyed or aborted"));
      return work;
    }
    pending_.fetch_add(1, std::memory_order_acq_rel);
    queue_.push_back(work);
    if (!thread_.joinable()) thread_ = std::thread([this] { main(); });
  }
  changed_.notify_all();
  return work;
}

void ProgressThread::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return idle(); });
}

void ProgressThread::stop() {
  std::deque<std::shared_ptr<QueuedWork>> dropped;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(queue_);
    pending_.fetch_sub(dropped.size(), std::memory_order_acq_rel);
  }
  changed_.notify_all();
  for (const auto& work : dropped) work->finish(Status::usage("this communicator was destroyed or aborted"));
  if (thread_.joinable()) thread_.join();
}

void ProgressThread::main() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  pthread_setname_np(pthread_self(), "theseus-work");
  for (;;) {
    std::shared_ptr<QueuedWork> work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work->run();
    {
      const std::lock_guard lock(mutex_);
      pending_.fetch_sub(1, std::memory_order_acq_rel);
    }
    changed_.notify_all();
  }
}

namespace {

class FinishedWork final : public Work {
 public:
  explicit FinishedWork(Status status) : status_(std::move(status)) {}
  bool done() const override { return true; }
  Status wait(double) override { return status_; }
  Status status() const override { return status_; }

 private:
  Status status_;
};

}  // namespace

std::shared_ptr<Work> finished_work(const Status& status) { return std::make_shared<FinishedWork>(status); }

}  // namespace theseus
