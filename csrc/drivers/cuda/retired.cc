#include "drivers/cuda/retired.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/log.h"

namespace theseus::cuda {

Retired& Retired::of(Driver& driver, int device) {
  static std::mutex& mutex = *new std::mutex;
  static auto& all = *new std::map<std::pair<Driver*, int>, std::unique_ptr<Retired>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Retired>& found = all[{&driver, device}];
  if (found == nullptr) found = std::make_unique<Retired>(driver, device);
  return *found;
}

void Retired::add_memory(void* memory, std::function<bool()> held) {
  if (memory == nullptr) return;
  add({memory, std::move(held), [this, memory] {
         // A failure is one of the device, and shows at the next call that can report it.
         if (const Status released = driver_.release(device_, memory); !released.ok()) {
           THESEUS_INFO(kLogInit, "device memory was not released: %s", released.message().c_str());
         }
       }});
}

void Retired::add(std::function<void()> give_back) { add({nullptr, {}, std::move(give_back)}); }

void Retired::add(Piece piece) {
  {
    const std::lock_guard lock(mutex_);
    pieces_.push_back(std::move(piece));
  }
  sweep();
}

Result<void*> Retired::allocate(size_t bytes) {
  Result<void*> memory = driver_.allocate(device_, bytes);
  if (memory.ok() || memory.status().code() != Code::UnhandledCudaError || waiting() == 0) return memory;
  sweep();
  memory = driver_.allocate(device_, bytes);
  if (memory.ok() || waiting() == 0) return memory;
  return Status(memory.status().code(), memory.status().message() + " (" + std::to_string(waiting()) +
                                            " pieces of ours wait for kernels, or for peers, to let go of them)");
}

bool Retired::holds(const void* memory) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(pieces_.begin(), pieces_.end(), [memory](const Piece& piece) { return piece.memory == memory; });
}

size_t Retired::waiting() const {
  const std::lock_guard lock(mutex_);
  return pieces_.size();
}

void Retired::begin_work() {
  std::unique_lock lock(mutex_);
  given_back_.wait(lock, [this] { return giving_back_ == 0; });
  ++working_;
}

void Retired::end_work() {
  {
    const std::lock_guard lock(mutex_);
    if (--working_ > 0) return;
  }
  sweep();
}

// What is given back may itself retire something, or take a while: not under the lock.
void Retired::sweep() {
  std::vector<Piece> ripe;
  {
    const std::lock_guard lock(mutex_);
    if (working_ > 0) return;
    const auto still_held = [](const Piece& piece) { return piece.held && piece.held(); };
    const auto first = std::stable_partition(pieces_.begin(), pieces_.end(), still_held);
    std::move(first, pieces_.end(), std::back_inserter(ripe));
    pieces_.erase(first, pieces_.end());
    if (ripe.empty()) return;
    ++giving_back_;
  }
  for (const Piece& piece : ripe) piece.give_back();
  ripe.clear();
  const std::lock_guard lock(mutex_);
  if (--giving_back_ == 0) given_back_.notify_all();
}

}  // namespace theseus::cuda
