// Threads of the emulator: as many as there are jobs at once, kept for the next ones.
// The TBs of a launch wait for each other, so no job may ever wait for a free thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace theseus::cuda {

class EmuThreads {
 public:
  EmuThreads() = default;
  EmuThreads(const EmuThreads&) = delete;
  EmuThreads& operator=(const EmuThreads&) = delete;
  // Waits for all jobs.
  ~EmuThreads();

  // Runs `job` now, on a thread of its own.
  void run(std::function<void()> job);

 private:
  struct Worker {
    std::condition_variable wake;
    std::function<void()> job;
    std::thread thread;
  };
  void work(Worker& worker, std::unique_lock<std::mutex> lock);

  std::mutex mutex_;
  std::condition_variable idle_changed_;
  bool ending_ = false;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> idle_;
};

}  // namespace theseus::cuda
