#include "base/owned_mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace theseus {
namespace {

// No two threads are ever inside, whether the owner is alone, is joined while it locks and unlocks, or shares for long.
TEST(OwnedMutex, ExcludesWhoeverComesWhenever) {
  constexpr int kRounds = 300, kTurns = 2000;
  for (int round = 0; round < kRounds; ++round) {
    OwnedMutex mutex;
    long counter = 0;  // not atomic on purpose
    const auto count = [&] {
      for (int turn = 0; turn < kTurns; ++turn) {
        const std::lock_guard lock(mutex);
        ++counter;
      }
    };
    std::atomic<bool> owned{false};
    std::thread owner([&] {
      for (int turn = 0; turn < 10; ++turn) {
        const std::lock_guard lock(mutex);
      }
      owned = true;
      count();
    });
    while (!owned) std::this_thread::yield();
    std::vector<std::thread> newcomers;
    for (int i = 0; i < 2; ++i) newcomers.emplace_back(count);
    owner.join();
    for (std::thread& thread : newcomers) thread.join();
    ASSERT_EQ(counter, 3 * kTurns) << "round " << round;
  }
}

// A newcomer waits while the owner is inside, and gets in once the owner has left.
TEST(OwnedMutex, WaitsForTheOwner) {
  OwnedMutex mutex;
  mutex.lock();
  mutex.unlock();
  mutex.lock();  // as the owner
  std::atomic<bool> entered{false};
  std::thread newcomer([&] {
    const std::lock_guard lock(mutex);
    entered = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_FALSE(entered);
  mutex.unlock();
  newcomer.join();
  EXPECT_TRUE(entered);
  const std::lock_guard lock(mutex);
}

}  // namespace
}  // namespace theseus
