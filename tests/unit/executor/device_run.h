// Launches of device code in this process, many at once: every CUDA thread a fiber of one OS thread, so that thousands
// of them cost little and a wait that never ends is found for certain; or an OS thread each.
//
// A kernel is what THESEUS_KERNEL makes of it outside CUDA (drivers/cuda/emu_device.h).
#pragma once

#include <gtest/gtest.h>

#include <ucontext.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "drivers/cuda/emu_device.h"

// GCC's own jumps change stacks in a few instructions; swapcontext() asks the system for the signal mask each time.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define THESEUS_TEST_JUMPS 1
#else
#define THESEUS_TEST_JUMPS 0
#endif

#if defined(__SANITIZE_THREAD__)
#define SKIP_WITHOUT_FIBERS() GTEST_SKIP() << "ThreadSanitizer does not follow fibers; DeviceThreads is for it"
#else
#define SKIP_WITHOUT_FIBERS() static_cast<void>(0)
#endif

namespace theseus::testing {

struct KernelLaunch {
  emu::Entry entry = nullptr;
  const void* parameters = nullptr;
  uint32_t blocks = 1;
  uint32_t threads = 1;
};

// A TB: its variables, and what its threads wait at.
struct EmulatedBlock {
  std::map<const void*, std::vector<uint64_t>> variables;
  std::vector<uint64_t> exchange;
  uint64_t generation = 0;
  uint32_t arrived = 0;
  std::mutex mutex;
  std::condition_variable changed;

  void* variable(const void* key, size_t bytes) {
    const std::lock_guard lock(mutex);
    std::vector<uint64_t>& memory = variables[key];
    if (memory.empty()) memory.assign((bytes + 7) / 8, 0xcdcdcdcdcdcdcdcd);
    return memory.data();
  }
};

// All launches at once, to their end. Threads of a launch take turns in an order that `seed` decides.
class FiberRun {
 public:
  explicit FiberRun(uint64_t seed) : random_(seed) { getcontext(&main_); }

  // "" once all have ended, else "deadlock": for `patience` rounds of all threads, no barrier was passed and no thread
  // ended. Not to be tried again after that.
  std::string run(const std::vector<KernelLaunch>& launches, int patience = 2000) {
    for (const KernelLaunch& launch : launches) add(launch);
    current_run() = this;
    std::vector<Fiber*> open;
    for (Fiber& fiber : fibers_) open.push_back(&fiber);
    std::shuffle(open.begin(), open.end(), random_);
    for (int idle = 0; !open.empty();) {
      const uint64_t before = progress_;
      for (size_t i = 0; i < open.size();) {
        resume(*open[i]);
        if (open[i]->over) {
          open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
          ++progress_;
        } else {
          ++i;
        }
      }
      idle = progress_ == before ? idle + 1 : 0;
      if (idle > patience) return "deadlock";
      if (on_round) on_round();
    }
    return "";
  }

  std::function<void()> on_round;  // called once all threads had a turn

 private:
  static constexpr size_t kStack = 64 << 10;

  struct Fiber {
    ucontext_t context;
    std::unique_ptr<uint8_t[]> stack;
    emu::Thread thread;
    const KernelLaunch* launch;
    EmulatedBlock* block;
    bool over = false;
    bool begun = false;
    void* jump[5];  // where it goes on
  };

  static FiberRun*& current_run() {
    static thread_local FiberRun* run = nullptr;
    return run;
  }

  void add(const KernelLaunch& launch) {
    for (uint32_t block = 0; block < launch.blocks; ++block) {
      EmulatedBlock& state = blocks_.emplace_back();
      state.exchange.resize(launch.threads);
      for (uint32_t thread = 0; thread < launch.threads; ++thread) {
        Fiber& fiber = fibers_.emplace_back();
        fiber.launch = &launch;
        fiber.block = &state;
        fiber.thread = {thread,   block,     launch.threads, launch.blocks, &state, nullptr, state.exchange.data(),
                        &barrier, &variable, &pause};
        fiber.stack = std::make_unique_for_overwrite<uint8_t[]>(kStack);
        fiber.context = main_;
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = kStack;
        fiber.context.uc_link = nullptr;  // start() does not return
        makecontext(&fiber.context, &start, 0);
      }
    }
  }

  static void start() {
    Fiber& fiber = *current_run()->current_;
    fiber.launch->entry(&fiber.thread, fiber.launch->parameters);
    fiber.over = true;
    current_run()->leave(fiber);
  }

  // Lets the others run. They change what emu_device.h keeps of the running thread.
  static void yield() {
    Fiber& fiber = *current_run()->current_;
    current_run()->leave(fiber);
    emu::enter(&fiber.thread);
  }

#if THESEUS_TEST_JUMPS
  // A function of its own: the compiler may take both halves in one for a circle.
  [[gnu::noinline]] static void go_to(void** jump) { __builtin_longjmp(jump, 1); }
#endif
  // From the loop over all fibers into one, until that leaves.
  [[gnu::noinline]] void resume(Fiber& fiber) {
    current_ = &fiber;
#if THESEUS_TEST_JUMPS
    if (__builtin_setjmp(jump_) != 0) return;
    if (fiber.begun) go_to(fiber.jump);
    fiber.begun = true;
    setcontext(&fiber.context);
#else
    swapcontext(&main_, &fiber.context);
#endif
  }
  // And back.
  [[gnu::noinline]] void leave(Fiber& fiber) {
#if THESEUS_TEST_JUMPS
    if (__builtin_setjmp(fiber.jump) == 0) go_to(jump_);
#else
    swapcontext(&fiber.context, &main_);
#endif
  }
  static void barrier(void* state, uint32_t, uint32_t threads) {
    auto& block = *static_cast<EmulatedBlock*>(state);
    const uint64_t generation = block.generation;
    if (++block.arrived == threads) {
      block.arrived = 0;
      ++block.generation;
      ++current_run()->progress_;
    }
    while (block.generation == generation) yield();
  }
  static void* variable(void* state, const void* key, size_t bytes) {
    return static_cast<EmulatedBlock*>(state)->variable(key, bytes);
  }
  static void pause() { yield(); }

  std::mt19937_64 random_;
  std::deque<Fiber> fibers_;
  std::deque<EmulatedBlock> blocks_;
  ucontext_t main_;
  void* jump_[5];
  Fiber* current_ = nullptr;
  uint64_t progress_ = 0;
};

// The same with an OS thread each. Kernels may come from another shared object.
inline void run_in_threads(const std::vector<KernelLaunch>& launches) {
  struct Functions {
    static void barrier(void* state, uint32_t, uint32_t threads) {
      auto& block = *static_cast<EmulatedBlock*>(state);
      std::unique_lock lock(block.mutex);
      const uint64_t generation = block.generation;
      if (++block.arrived == threads) {
        block.arrived = 0;
        ++block.generation;
        block.changed.notify_all();
      }
      block.changed.wait(lock, [&] { return block.generation != generation; });
    }
    static void* variable(void* state, const void* key, size_t bytes) {
      return static_cast<EmulatedBlock*>(state)->variable(key, bytes);
    }
    static void pause() { std::this_thread::yield(); }
  };
  std::deque<EmulatedBlock> blocks;
  std::deque<emu::Thread> arguments;
  std::vector<std::thread> threads;
  for (const KernelLaunch& launch : launches) {
    for (uint32_t block = 0; block < launch.blocks; ++block) {
      EmulatedBlock& state = blocks.emplace_back();
      state.exchange.resize(launch.threads);
      for (uint32_t thread = 0; thread < launch.threads; ++thread) {
        arguments.push_back({thread, block, launch.threads, launch.blocks, &state, nullptr, state.exchange.data(),
                             &Functions::barrier, &Functions::variable, &Functions::pause});
        threads.emplace_back(launch.entry, &arguments.back(), launch.parameters);
      }
    }
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace theseus::testing
