// Helpers of the net tests: ranks as threads, and children that end without running gtest's exit code.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <thread>
#include <vector>

namespace theseus::testing {

// Runs body(rank) on one thread per rank and waits for all.
inline void run_ranks(int ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (auto& thread : threads) thread.join();
}

// Waits until `condition` holds, at most `seconds`.
inline bool eventually(const std::function<bool()>& condition, double seconds = 20) {
  for (int i = 0; i < static_cast<int>(seconds * 200); ++i) {
    if (condition()) return true;
    usleep(5000);
  }
  return condition();
}

}  // namespace theseus::testing
