// What the tests of drivers share: each runs on every driver that this machine has, and says why it left one out.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "drivers/cuda/api.h"
#include "drivers/cuda/emu.h"
#include "drivers/cuda/real.h"
#include "drivers/cuda/real_driver.h"
#include "unit/drivers/fake_cuda.h"

namespace theseus::cuda {

// One driver of each kind for the whole program. Null where the machine has none; *why says so.
inline Driver* test_driver(const std::string& kind, std::string* why) {
  if (kind == "emulator") {
    static Emulator emulator([] {
      EmulatorOptions options;
      options.max_threads = 64;
      options.memory_bytes = 64 << 20;
      return options;
    }());
    return &emulator;
  }
  if (kind == "fake") {
    static RealDriver fake(fake::table(), fake::device().device_count());
    return &fake;
  }
  static const Result<std::unique_ptr<Driver>> real = open_real_driver();
  *why = real.status().message();
  return real.ok() ? real.value().get() : nullptr;
}

inline void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

// The value, or a failed test and T().
template <class T>
T take(Result<T> result) {
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? std::move(*result) : T();
}

class OnEachDriver : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::string why;
    driver_ = test_driver(GetParam(), &why);
    if (driver_ == nullptr) GTEST_SKIP() << why;
  }

  Driver& driver() { return *driver_; }

  // Memory of a device, released with the test.
  template <class T>
  T* device_memory(size_t count, int device = 0) {
    void* memory = take(driver().allocate(device, count * sizeof(T)));
    device_memory_.emplace_back(device, memory);
    return static_cast<T*>(memory);
  }

  template <class T>
  void to_device(T* memory, const std::vector<T>& values, int device = 0) {
    expect_ok(driver().copy(device, memory, values.data(), values.size() * sizeof(T), nullptr));
    expect_ok(driver().synchronize(device, Stream()));
  }

  template <class T>
  std::vector<T> from_device(const T* memory, size_t count, int device = 0) {
    std::vector<T> values(count);
    expect_ok(driver().copy(device, values.data(), memory, count * sizeof(T), nullptr));
    expect_ok(driver().synchronize(device, Stream()));
    return values;
  }

  void TearDown() override {
    for (const auto& [device, memory] : device_memory_) expect_ok(driver().release(device, memory));
  }

 private:
  Driver* driver_ = nullptr;
  std::vector<std::pair<int, void*>> device_memory_;
};

// The real driver over a fake libcuda ("fake") has no kernels.
#define ON_DRIVERS(suite, ...)                                           \
  INSTANTIATE_TEST_SUITE_P(Drivers, suite, testing::Values(__VA_ARGS__), \
                           [](const auto& info) { return std::string(info.param); })

// Work that a test lets go on: queued on a stream, it waits until open().
class Gate {
 public:
  static void wait(void* gate) {
    Gate* self = static_cast<Gate*>(gate);
    self->open_.wait(false);
  }
  void open() {
    open_.store(true);
    open_.notify_all();
  }

 private:
  std::atomic<bool> open_{false};
};

}  // namespace theseus::cuda
