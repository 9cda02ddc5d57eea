#include "drivers/cuda/emu_block.h"

#include <sched.h>
#include <time.h>

#include <atomic>
#include <cstring>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace theseus::cuda {
namespace {

constexpr int kPoison = 0xCD;
constexpr int kYieldsBeforeSleep = 64;

class Barrier {
 public:
  void arrive_and_wait(uint32_t threads) {
    if (threads <= 1) return;
    const int generation = generation_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
      arrived_.store(0, std::memory_order_relaxed);  // nobody comes again before the generation changed
      generation_.fetch_add(1, std::memory_order_release);
      generation_.notify_all();
      return;
    }
    for (int i = 0; i < kYieldsBeforeSleep; ++i) {
      if (generation_.load(std::memory_order_acquire) != generation) return;
      sched_yield();
    }
    while (generation_.load(std::memory_order_acquire) == generation) generation_.wait(generation);
  }

 private:
  std::atomic<uint32_t> arrived_{0};
  std::atomic<int> generation_{0};
};

class Block {
 public:
  explicit Block(const EmuGrid& grid)
      : barriers_(emu::kNamedBarriers + (grid.threads + emu::kWarp - 1) / emu::kWarp),
        dynamic_(grid.shared_bytes, kPoison),
        exchange_(grid.threads) {}

  emu::Thread thread(const EmuGrid& grid, uint32_t block, uint32_t index) {
    return {index,    block,     grid.threads, grid.blocks, this, dynamic_.data(), exchange_.data(),
            &barrier, &variable, &pause};
  }

 private:
  static void barrier(void* state, uint32_t id, uint32_t threads) {
    static_cast<Block*>(state)->barriers_.at(id).arrive_and_wait(threads);
  }

  static void* variable(void* state, const void* key, size_t bytes) {
    Block& block = *static_cast<Block*>(state);
    std::lock_guard lock(block.mutex_);
    std::vector<Line>& memory = block.variables_[key];
    if (memory.empty()) {
      memory.resize((bytes + sizeof(Line) - 1) / sizeof(Line));
      for (Line& line : memory) std::memset(&line, kPoison, sizeof line);
    }
    return memory.data();
  }

  // On few cores the thread that is waited for must get one; a long wait should not take them all.
  static void pause() {
    static thread_local uint32_t pauses = 0;
    if (++pauses % 256 != 0) {
      sched_yield();
      return;
    }
    const timespec rest{0, 20000};
    nanosleep(&rest, nullptr);
  }

  struct alignas(64) Line {
    unsigned char bytes[64];
  };
  std::vector<Barrier> barriers_;
  std::vector<unsigned char> dynamic_;
  std::vector<uint64_t> exchange_;
  std::mutex mutex_;
  std::map<const void*, std::vector<Line>> variables_;
};

}  // namespace

void run_grid(EmuThreads& threads, const EmuGrid& grid) {
  std::vector<std::unique_ptr<Block>> blocks;
  for (uint32_t block = 0; block < grid.blocks; ++block) blocks.push_back(std::make_unique<Block>(grid));
  const auto run = [&](uint32_t block, uint32_t index) {
    const emu::Thread thread = blocks[block]->thread(grid, block, index);
    grid.entry(&thread, grid.parameters);
  };
  std::latch done(static_cast<std::ptrdiff_t>(grid.blocks) * grid.threads - 1);
  for (uint32_t block = 0; block < grid.blocks; ++block) {
    for (uint32_t index = block == 0 ? 1 : 0; index < grid.threads; ++index) {
      threads.run([&run, &done, block, index] {
        run(block, index);
        done.count_down();
      });
    }
  }
  run(0, 0);  // the calling thread is one of them
  done.wait();
}

}  // namespace theseus::cuda
