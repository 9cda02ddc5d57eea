#include "executor/device_memory.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace theseus {

DeviceShelf::~DeviceShelf() {
  for (const auto& [length, pieces] : free_) {
    for (void* piece : pieces) (void)driver_.release(device_, piece);
  }
}

size_t DeviceShelf::length_for(size_t bytes) {
  const size_t power = std::bit_ceil(std::max<size_t>(bytes, 256));
  return bytes <= power / 4 * 3 ? power / 4 * 3 : power;
}

Result<void*> DeviceShelf::take(size_t bytes) {
  const size_t length = length_for(bytes);
  if (const auto found = free_.find(length); found != free_.end() && !found->second.empty()) {
    void* const piece = found->second.back();
    found->second.pop_back();
    return piece;
  }
  return driver_.allocate(device_, length);
}

void DeviceShelf::give(void* memory, size_t bytes) { free_[length_for(bytes)].push_back(memory); }

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : shelf_(std::move(other.shelf_)),
      driver_(other.driver_),
      device_(other.device_),
      memory_(std::exchange(other.memory_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(shelf_, other.shelf_);
  std::swap(driver_, other.driver_);
  std::swap(device_, other.device_);
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Result<DeviceMemory> DeviceMemory::allocate(cuda::Driver& driver, int device, size_t bytes) {
  DeviceMemory memory;
  if (bytes == 0) return memory;
  Result<void*> allocated = driver.allocate(device, bytes);
  if (!allocated.ok()) return allocated.status();
  memory.driver_ = &driver;
  memory.device_ = device;
  memory.memory_ = *allocated;
  memory.bytes_ = bytes;
  return memory;
}

Result<DeviceMemory> DeviceMemory::allocate(const std::shared_ptr<DeviceShelf>& shelf, size_t bytes) {
  DeviceMemory memory;
  if (bytes == 0) return memory;
  Result<void*> taken = shelf->take(bytes);
  if (!taken.ok()) return taken.status();
  memory.shelf_ = shelf;
  memory.memory_ = *taken;
  memory.bytes_ = bytes;
  return memory;
}

void DeviceMemory::reset() {
  if (memory_ != nullptr && shelf_ != nullptr) {
    shelf_->give(memory_, bytes_);
  } else if (memory_ != nullptr) {
    // A failure is one of the device, and shows at the next call that can report it.
    (void)driver_->release(device_, memory_);
  }
  shelf_ = nullptr;
  memory_ = nullptr;
  bytes_ = 0;
}

}  // namespace theseus
