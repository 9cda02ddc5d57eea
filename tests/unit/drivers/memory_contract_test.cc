// What every driver promises about devices and memory.
#include "unit/drivers/driver_testing.h"

namespace theseus::cuda {
namespace {

class MemoryContract : public OnEachDriver {};
ON_DRIVERS(MemoryContract, "emulator", "fake", "real");

TEST_P(MemoryContract, DevicesAreCountedAndDescribed) {
  ASSERT_GT(driver().device_count(), 0);
  for (int device = 0; device < driver().device_count(); ++device) {
    const DeviceInfo info = take(driver().device_info(device));
    EXPECT_EQ(info.ordinal, device);
    EXPECT_FALSE(info.name.empty());
    EXPECT_FALSE(info.pci.empty());
    EXPECT_GT(info.multiprocessors, 0);
    EXPECT_GT(info.memory_bytes, 0u);
    EXPECT_GT(info.max_threads, 0);
    EXPECT_GT(info.max_shared_bytes, 0);
    EXPECT_TRUE(take(driver().can_access_peer(device, device)));
    for (int other = 0; other < device; ++other) EXPECT_NE(take(driver().device_info(other)).uuid, info.uuid);
  }
}

TEST_P(MemoryContract, DevicesThatAreNotThereAreRefused) {
  for (const int device : {-1, driver().device_count()}) {
    EXPECT_EQ(driver().device_info(device).status().code(), Code::InvalidArgument);
    EXPECT_EQ(driver().allocate(device, 1).status().code(), Code::InvalidArgument);
    EXPECT_EQ(driver().create_stream(device).status().code(), Code::InvalidArgument);
    EXPECT_EQ(driver().set_current_device(device).code(), Code::InvalidArgument);
  }
}

TEST_P(MemoryContract, CurrentDeviceIsTheThreads) {
  const int last = driver().device_count() - 1;
  expect_ok(driver().set_current_device(last));
  EXPECT_EQ(take(driver().current_device()), last);
  // Calls that name another device leave it.
  device_memory<char>(1, 0);
  EXPECT_EQ(take(driver().current_device()), last);
  expect_ok(driver().set_current_device(0));
}

TEST_P(MemoryContract, AllocationsAreAlignedAndApart) {
  for (const size_t bytes : {size_t{1}, size_t{255}, size_t{4097}, size_t{1} << 20}) {
    char* first = device_memory<char>(bytes);
    char* second = device_memory<char>(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 256, 0u);
    EXPECT_TRUE(first + bytes <= second || second + bytes <= first);
  }
}

TEST_P(MemoryContract, EmptyAndImpossibleAllocationsAreRefused) {
  EXPECT_EQ(driver().allocate(0, 0).status().code(), Code::InvalidArgument);
  EXPECT_EQ(driver().allocate_pinned(0).status().code(), Code::InvalidArgument);
  const Status refused = driver().allocate(0, size_t{1} << 50).status();
  EXPECT_EQ(refused.code(), Code::UnhandledCudaError);
  EXPECT_NE(refused.message().find("out of memory"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find(std::to_string(size_t{1} << 50)), std::string::npos) << refused.message();
}

TEST_P(MemoryContract, OnlyWhatWasAllocatedIsReleasedAndOnce) {
  void* memory = take(driver().allocate(0, 4096));
  EXPECT_FALSE(driver().release(0, static_cast<char*>(memory) + 256).ok());
  expect_ok(driver().release(0, memory));
  EXPECT_FALSE(driver().release(0, memory).ok());
  expect_ok(driver().release(0, nullptr));
  expect_ok(driver().release_pinned(nullptr));
}

TEST_P(MemoryContract, PointersAreTold) {
  const int last = driver().device_count() - 1;
  char* device = device_memory<char>(10000, last);
  for (const size_t offset : {0, 1, 9999}) {
    const PointerInfo info = take(driver().pointer_info(device + offset));
    EXPECT_EQ(info.kind, PointerKind::Device);
    EXPECT_EQ(info.ordinal, last);
    EXPECT_EQ(info.base, device);
    EXPECT_GE(info.bytes, 10000u);
    EXPECT_TRUE(info.exportable);
  }
  char* pinned = static_cast<char*>(take(driver().allocate_pinned(5000)));
  const PointerInfo info = take(driver().pointer_info(pinned + 4999));
  EXPECT_EQ(info.kind, PointerKind::Pinned);
  EXPECT_EQ(info.base, pinned);
  EXPECT_FALSE(info.exportable);
  expect_ok(driver().release_pinned(pinned));
}

TEST_P(MemoryContract, UnknownPointersAreNoError) {
  const std::vector<char> heap(100);
  int stack = 0;
  for (const void* pointer :
       {static_cast<const void*>(heap.data()), static_cast<const void*>(&stack), static_cast<const void*>(nullptr)}) {
    const PointerInfo info = take(driver().pointer_info(pointer));
    EXPECT_EQ(info.kind, PointerKind::Unregistered);
    EXPECT_EQ(info.ordinal, -1);
    EXPECT_EQ(info.base, nullptr);
  }
  EXPECT_FALSE(driver().device_address(0, heap.data() == nullptr ? nullptr : &stack).ok());
}

TEST_P(MemoryContract, HostMemoryIsRegisteredAndLetGo) {
  constexpr size_t bytes = 8192;
  void* memory = std::aligned_alloc(4096, bytes);
  expect_ok(driver().register_host(memory, bytes));
  EXPECT_EQ(take(driver().pointer_info(static_cast<char*>(memory) + 5000)).kind, PointerKind::Pinned);
  EXPECT_FALSE(driver().register_host(memory, bytes).ok());
  EXPECT_NE(take(driver().device_address(0, memory)), nullptr);
  expect_ok(driver().unregister_host(memory));
  EXPECT_EQ(take(driver().pointer_info(memory)).kind, PointerKind::Unregistered);
  EXPECT_FALSE(driver().unregister_host(memory).ok());
  std::free(memory);
}

TEST_P(MemoryContract, CopiesGoBetweenAllKindsOfMemory) {
  std::vector<int> values(3000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int>(i * 7 + 1);
  int* first = device_memory<int>(values.size());
  int* second = device_memory<int>(values.size(), driver().device_count() - 1);
  int* pinned = static_cast<int*>(take(driver().allocate_pinned(values.size() * sizeof(int))));
  const size_t bytes = values.size() * sizeof(int);
  to_device(first, values);
  expect_ok(driver().copy(0, second, first, bytes, nullptr));
  expect_ok(driver().copy(0, pinned, second, bytes, nullptr));
  expect_ok(driver().synchronize(0, Stream()));
  EXPECT_EQ(std::vector<int>(pinned, pinned + values.size()), values);
  EXPECT_EQ(from_device(second, values.size()), values);
  expect_ok(driver().release_pinned(pinned));
}

TEST_P(MemoryContract, FillsTouchTheirBytesAlone) {
  uint8_t* memory = device_memory<uint8_t>(1000);
  expect_ok(driver().fill(0, memory, 1, 1000, nullptr));
  expect_ok(driver().fill(0, memory + 3, 0xab, 500, nullptr));
  const std::vector<uint8_t> values = from_device(memory, 1000);
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], i >= 3 && i < 503 ? 0xab : 1) << i;
}

}  // namespace
}  // namespace theseus::cuda
