// What is given back later: never while kernels of ours wait for each other, nor while another process holds it.
#include "drivers/cuda/retired.h"

#include "unit/drivers/driver_testing.h"

namespace theseus::cuda {
namespace {

class RetiredTest : public testing::Test {
 protected:
  static EmulatorOptions options() {
    EmulatorOptions options;
    options.devices = 2;
    options.memory_bytes = 1 << 20;
    return options;
  }
  bool is_there(const void* memory) { return take(emulator.pointer_info(memory)).kind != PointerKind::Unregistered; }

  Emulator emulator{options()};
  Retired retired{emulator, 0};
};

TEST_F(RetiredTest, MemoryGoesAtOnceWhereNothingIsUnderWay) {
  void* memory = take(emulator.allocate(0, 100));
  retired.add_memory(memory);
  EXPECT_FALSE(is_there(memory));
  EXPECT_EQ(retired.waiting(), 0u);
  retired.add_memory(nullptr);
}

// Giving back would wait for the device, and so for a kernel whose peer this thread may have yet to launch.
TEST_F(RetiredTest, NothingIsGivenBackWhileKernelsAreUnderWay) {
  void* memory = take(emulator.allocate(0, 100));
  const Stream on = take(emulator.create_stream(0));
  Gate gate;
  expect_ok(emulator.call_host(0, on, &Gate::wait, &gate));
  retired.begin_work();
  retired.begin_work();
  int given_back = 0;
  retired.add_memory(memory);  // returns
  retired.add([&] { ++given_back; });
  EXPECT_TRUE(retired.holds(memory));
  EXPECT_TRUE(is_there(memory));
  gate.open();
  expect_ok(emulator.synchronize(0, on));
  retired.end_work();
  EXPECT_TRUE(is_there(memory));
  EXPECT_EQ(given_back, 0);
  retired.end_work();
  EXPECT_FALSE(is_there(memory));
  EXPECT_FALSE(retired.holds(memory));
  EXPECT_EQ(given_back, 1);
}

TEST_F(RetiredTest, WhatOthersHoldStaysAndNobodyWaits) {
  bool held = true;
  void* memory = take(emulator.allocate(0, 100));
  void* other = take(emulator.allocate(0, 100));
  retired.add_memory(memory, [&held] { return held; });
  retired.add_memory(other);
  EXPECT_TRUE(is_there(memory));
  EXPECT_FALSE(is_there(other));
  held = false;
  retired.sweep();
  EXPECT_FALSE(is_there(memory));
}

// Who needs memory gets what was let go of in the meantime; where none was, the message says what is waited for.
TEST_F(RetiredTest, AllocationsTakeWhatIsLetGoOf) {
  bool held = true;
  retired.add_memory(take(emulator.allocate(0, 1 << 20)), [&held] { return held; });
  const Status refused = retired.allocate(1 << 19).status();
  EXPECT_EQ(refused.code(), Code::UnhandledCudaError);
  EXPECT_NE(refused.message().find("out of memory"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("wait for"), std::string::npos) << refused.message();
  held = false;
  void* memory = take(retired.allocate(1 << 19));
  EXPECT_TRUE(is_there(memory));
  retired.add_memory(memory);
}

TEST_F(RetiredTest, DevicesHaveTheirOwn) {
  EXPECT_EQ(&Retired::of(emulator, 1), &Retired::of(emulator, 1));
  EXPECT_NE(&Retired::of(emulator, 1), &Retired::of(emulator, 0));
}

}  // namespace
}  // namespace theseus::cuda
