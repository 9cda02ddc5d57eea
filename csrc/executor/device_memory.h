// Memory of a device for one communicator.
//
// The driver waits for all work of a device before it takes memory back (cuda::Driver::release), other ranks' kernels
// included; and these may wait for what the very thread that gives memory back would launch next. So what requests no
// longer need goes on a shelf, from which later ones take, and to the driver when the communicator ends.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "base/result.h"
#include "drivers/cuda/api.h"

namespace theseus {

// Used under the communicator's lock. Pieces have few lengths, so that one fits whoever asks for about as much.
class DeviceShelf {
 public:
  DeviceShelf(cuda::Driver& driver, int device) : driver_(driver), device_(device) {}
  // Gives all that lies here to the driver.
  ~DeviceShelf();
  DeviceShelf(const DeviceShelf&) = delete;
  DeviceShelf& operator=(const DeviceShelf&) = delete;

  // At least `bytes`, which are not 0. What was in it before is still there.
  Result<void*> take(size_t bytes);
  // What take() gave for `bytes`; nothing on the device uses it any more.
  void give(void* memory, size_t bytes);

  // What pieces for `bytes` are long: a power of two, or one and a half of that.
  static size_t length_for(size_t bytes);

 private:
  cuda::Driver& driver_;
  const int device_;
  std::map<size_t, std::vector<void*>> free_;  // by length
};

// One piece of memory, given back at the end: to the shelf that it came from, or straight to the driver, which then
// waits.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory() { reset(); }
  static Result<DeviceMemory> allocate(cuda::Driver& driver, int device, size_t bytes);
  static Result<DeviceMemory> allocate(const std::shared_ptr<DeviceShelf>& shelf, size_t bytes);

  void* get() const { return memory_; }
  size_t bytes() const { return bytes_; }
  void reset();

 private:
  std::shared_ptr<DeviceShelf> shelf_;  // null: the driver's
  cuda::Driver* driver_ = nullptr;
  int device_ = 0;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace theseus
