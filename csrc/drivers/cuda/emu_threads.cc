#include "drivers/cuda/emu_threads.h"

#include <utility>

namespace theseus::cuda {

void EmuThreads::run(std::function<void()> job) {
  std::lock_guard lock(mutex_);
  if (!idle_.empty()) {
    Worker* worker = idle_.back();
    idle_.pop_back();
    worker->job = std::move(job);
    worker->wake.notify_one();
    return;
  }
  Worker* worker = workers_.emplace_back(std::make_unique<Worker>()).get();
  worker->job = std::move(job);
  worker->thread = std::thread([this, worker] { work(*worker, std::unique_lock(mutex_)); });
}

void EmuThreads::work(Worker& worker, std::unique_lock<std::mutex> lock) {
  while (true) {
    worker.wake.wait(lock, [&] { return worker.job != nullptr || ending_; });
    if (worker.job == nullptr) return;
    std::function<void()> job = std::exchange(worker.job, nullptr);
    lock.unlock();
    job();
    job = nullptr;  // what it holds goes before the thread counts as idle
    lock.lock();
    idle_.push_back(&worker);
    idle_changed_.notify_all();
  }
}

EmuThreads::~EmuThreads() {
  {
    std::unique_lock lock(mutex_);
    idle_changed_.wait(lock, [&] { return idle_.size() == workers_.size(); });
    ending_ = true;
    for (const auto& worker : workers_) worker->wake.notify_one();
  }
  for (const auto& worker : workers_) worker->thread.join();
}

}  // namespace theseus::cuda
