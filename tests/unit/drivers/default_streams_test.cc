// The order that CUDA keeps between the legacy default stream and others, as the emulator has it; and memory that a
// user may hand in beside what cudaMalloc gives.
#include <thread>

#include "unit/drivers/driver_testing.h"

namespace theseus::cuda {
namespace {

using namespace std::chrono_literals;

class DefaultStreams : public testing::Test {
 protected:
  static EmulatorOptions options() {
    EmulatorOptions options;
    options.devices = 2;
    options.memory_bytes = 1 << 20;
    return options;
  }

  // Work that sets a number, once the gate is open.
  struct Step {
    std::atomic<int>* number;
    int value;
    static void run(void* step) {
      auto* self = static_cast<Step*>(step);
      self->number->store(self->value);
    }
  };
  void hold(Stream on, Gate& gate, int device = 0) { expect_ok(emulator.call_host(device, on, &Gate::wait, &gate)); }

  Emulator emulator{options()};
};

// What is on blocking streams runs before what is queued on the default stream after it, and what comes on them later
// runs behind that.
TEST_F(DefaultStreams, TheLegacyStreamAndBlockingOnesWaitForEachOther) {
  const Stream blocking = take(emulator.create_blocking_stream(0));
  const Stream later = take(emulator.create_blocking_stream(0));
  for (const Stream legacy : {Stream(), legacy_stream()}) {
    Gate gate;
    std::atomic<int> number{0};
    Step first{&number, 1};
    Step second{&number, 2};
    hold(blocking, gate);
    expect_ok(emulator.call_host(0, legacy, &Step::run, &first));
    expect_ok(emulator.call_host(0, later, &Step::run, &second));
    EXPECT_FALSE(take(emulator.query(0, legacy)));
    EXPECT_FALSE(take(emulator.query(0, later)));
    EXPECT_EQ(number, 0);
    gate.open();
    expect_ok(emulator.synchronize(0, later));
    EXPECT_EQ(number, 2);
    EXPECT_TRUE(take(emulator.query(0, legacy)));
  }
}

TEST_F(DefaultStreams, OtherStreamsDoNotTakePart) {
  const Stream blocking = take(emulator.create_blocking_stream(0));
  const Stream free = take(emulator.create_stream(0));
  const Stream elsewhere = take(emulator.create_blocking_stream(1));
  Gate gate;
  hold(Stream(), gate);
  std::atomic<int> number{0};
  Step step{&number, 1};
  expect_ok(emulator.call_host(0, free, &Step::run, &step));
  expect_ok(emulator.synchronize(0, free));
  EXPECT_EQ(number, 1);
  expect_ok(emulator.call_host(1, elsewhere, &Step::run, &step));
  expect_ok(emulator.synchronize(1, elsewhere));
  expect_ok(emulator.call_host(0, blocking, &Step::run, &step));
  EXPECT_FALSE(take(emulator.query(0, blocking)));
  gate.open();
  expect_ok(emulator.synchronize(0, blocking));
}

// One handle, another stream on each thread; each is a blocking one.
TEST_F(DefaultStreams, EachThreadHasADefaultStreamOfItsOwn) {
  Gate gate;
  hold(per_thread_stream(), gate);
  std::thread([&] {
    std::atomic<int> number{0};
    Step step{&number, 1};
    expect_ok(emulator.call_host(0, per_thread_stream(), &Step::run, &step));
    expect_ok(emulator.synchronize(0, per_thread_stream()));
    EXPECT_EQ(number, 1);
  }).join();
  EXPECT_FALSE(take(emulator.query(0, per_thread_stream())));
  std::atomic<int> number{0};
  Step step{&number, 1};
  expect_ok(emulator.call_host(0, Stream(), &Step::run, &step));
  EXPECT_FALSE(take(emulator.query(0, Stream())));
  gate.open();
  expect_ok(emulator.synchronize(0, Stream()));
  EXPECT_FALSE(emulator.destroy_stream(0, per_thread_stream()).ok());
}

// The default stream would have to wait for work that does not run: CUDA refuses that, and the capture is void.
TEST_F(DefaultStreams, TheLegacyStreamDoesNotWaitForACapture) {
  const Stream blocking = take(emulator.create_blocking_stream(0));
  auto* memory = static_cast<uint8_t*>(take(emulator.allocate(0, 4)));
  expect_ok(emulator.begin_capture(0, blocking));
  EXPECT_EQ(emulator.fill(0, memory, 1, 4, nullptr).code(), Code::InvalidUsage);
  EXPECT_FALSE(emulator.end_capture(0, blocking).ok());
  const Stream free = take(emulator.create_stream(0));
  expect_ok(emulator.begin_capture(0, free));
  expect_ok(emulator.fill(0, memory, 1, 4, nullptr));
  EXPECT_TRUE(emulator.end_capture(0, free).ok());
}

TEST_F(DefaultStreams, ManagedMemoryIsTold) {
  auto* memory = static_cast<uint8_t*>(take(emulator.allocate_managed(1, 5000)));
  const PointerInfo info = take(emulator.pointer_info(memory + 4999));
  EXPECT_EQ(info.kind, PointerKind::Managed);
  EXPECT_EQ(info.ordinal, 1);
  EXPECT_EQ(info.base, memory);
  EXPECT_FALSE(info.exportable);
  EXPECT_EQ(emulator.export_memory(memory).status().code(), Code::InvalidArgument);
  memory[0] = 7;  // the host may
  uint8_t back = 0;
  expect_ok(emulator.copy(0, &back, memory, 1, nullptr));
  EXPECT_EQ(back, 7);
  expect_ok(emulator.release(1, memory));
  EXPECT_EQ(take(emulator.pointer_info(memory)).kind, PointerKind::Unregistered);
}

// The time between two events is that of the work between them: it adds up, and is never less than the work took.
TEST_F(DefaultStreams, EventsTimeTheWorkBetweenThem) {
  const Stream on = take(emulator.create_stream(0));
  Event events[3];
  for (Event& event : events) event = take(emulator.create_event(0, true));
  const auto rest = [](void* time) { std::this_thread::sleep_for(*static_cast<std::chrono::milliseconds*>(time)); };
  std::chrono::milliseconds times[2] = {20ms, 5ms};
  expect_ok(emulator.record(0, events[0], on));
  for (int i = 0; i < 2; ++i) {
    expect_ok(emulator.call_host(0, on, rest, &times[i]));
    expect_ok(emulator.record(0, events[i + 1], on));
  }
  expect_ok(emulator.synchronize(0, on));
  const float first = take(emulator.elapsed(0, events[0], events[1]));
  const float second = take(emulator.elapsed(0, events[1], events[2]));
  EXPECT_GE(first, 20.0F);
  EXPECT_GE(second, 5.0F);
  EXPECT_NEAR(take(emulator.elapsed(0, events[0], events[2])), first + second, 0.01F);
  for (const Event event : events) expect_ok(emulator.destroy_event(0, event));
}

}  // namespace
}  // namespace theseus::cuda
