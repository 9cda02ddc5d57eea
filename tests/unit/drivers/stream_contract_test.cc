// What every driver promises about the order of work.
#include <atomic>
#include <thread>

#include "unit/drivers/driver_testing.h"

namespace theseus::cuda {
namespace {

class StreamContract : public OnEachDriver {
 protected:
  Stream stream(int device = 0) {
    streams_.emplace_back(device, take(driver().create_stream(device)));
    return streams_.back().second;
  }
  Event event(int device = 0, bool timing = false) {
    events_.emplace_back(device, take(driver().create_event(device, timing)));
    return events_.back().second;
  }
  void TearDown() override {
    for (const auto& [device, event] : events_) expect_ok(driver().destroy_event(device, event));
    for (const auto& [device, stream] : streams_) expect_ok(driver().destroy_stream(device, stream));
    OnEachDriver::TearDown();
  }

 private:
  std::vector<std::pair<int, Stream>> streams_;
  std::vector<std::pair<int, Event>> events_;
};
ON_DRIVERS(StreamContract, "emulator", "fake", "real");

// What host callbacks append to; a stream calls them one after another.
struct Notes {
  std::vector<int> order;
};
struct Note {
  Notes* notes;
  int number;
  static void write(void* note) {
    auto* self = static_cast<Note*>(note);
    self->notes->order.push_back(self->number);
  }
};

TEST_P(StreamContract, WorkOfAStreamIsInOrder) {
  const Stream on = stream();
  Notes notes;
  std::vector<Note> calls;
  for (int i = 0; i < 100; ++i) calls.push_back({&notes, i});
  for (Note& call : calls) expect_ok(driver().call_host(0, on, &Note::write, &call));
  expect_ok(driver().synchronize(0, on));
  ASSERT_EQ(notes.order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(notes.order[i], i);
}

TEST_P(StreamContract, CallsReturnBeforeTheirWorkIsDone) {
  const Stream on = stream();
  Gate gate;
  uint8_t* memory = device_memory<uint8_t>(100);
  expect_ok(driver().call_host(0, on, &Gate::wait, &gate));
  expect_ok(driver().fill(0, memory, 5, 100, on));
  EXPECT_FALSE(take(driver().query(0, on)));
  gate.open();
  expect_ok(driver().synchronize(0, on));
  EXPECT_TRUE(take(driver().query(0, on)));
  EXPECT_EQ(from_device(memory, 100), std::vector<uint8_t>(100, 5));
}

TEST_P(StreamContract, StreamsDoNotWaitForEachOther) {
  const Stream held = stream();
  const Stream free = stream();
  Gate gate;
  expect_ok(driver().call_host(0, held, &Gate::wait, &gate));
  expect_ok(driver().fill(0, device_memory<uint8_t>(100), 5, 100, free));
  expect_ok(driver().synchronize(0, free));
  EXPECT_FALSE(take(driver().query(0, held)));
  gate.open();
  expect_ok(driver().synchronize(0, held));
}

TEST_P(StreamContract, AnEventIsReachedWhenTheWorkBeforeItIsDone) {
  const Stream on = stream();
  const Event reached = event();
  EXPECT_TRUE(take(driver().query(0, reached)));  // never recorded
  Gate gate;
  expect_ok(driver().call_host(0, on, &Gate::wait, &gate));
  expect_ok(driver().record(0, reached, on));
  EXPECT_FALSE(take(driver().query(0, reached)));
  gate.open();
  expect_ok(driver().synchronize(0, reached));
  EXPECT_TRUE(take(driver().query(0, reached)));
}

// Across all pairs of devices: the waiting stream sees what came before the record, for every round of one event.
TEST_P(StreamContract, AStreamWaitsForAnEventOfAnother) {
  const int last = driver().device_count() - 1;
  const Stream first = stream(0);
  const Stream second = stream(last);
  const Event done = event(0);
  int* memory = device_memory<int>(1);
  int* pinned = static_cast<int*>(take(driver().allocate_pinned(sizeof(int))));
  for (uint8_t round = 1; round <= 50; ++round) {
    Gate gate;
    expect_ok(driver().call_host(0, first, &Gate::wait, &gate));
    expect_ok(driver().fill(0, memory, round, sizeof(int), first));
    expect_ok(driver().record(0, done, first));
    expect_ok(driver().wait(last, second, done));
    expect_ok(driver().copy(last, pinned, memory, sizeof(int), second));
    EXPECT_FALSE(take(driver().query(last, second)));
    gate.open();
    expect_ok(driver().synchronize(last, second));
    ASSERT_EQ(*pinned, round * 0x01010101);
  }
  expect_ok(driver().release_pinned(pinned));
}

TEST_P(StreamContract, WaitingForAnEventWithoutARecordIsNothing) {
  const Stream on = stream();
  expect_ok(driver().wait(0, on, event()));
  expect_ok(driver().synchronize(0, on));
}

// A wait is for the record that was the last when it was queued, not for later ones.
TEST_P(StreamContract, AWaitIsForTheRecordBeforeIt) {
  const Stream first = stream();
  const Stream second = stream();
  const Event done = event();
  expect_ok(driver().record(0, done, first));
  expect_ok(driver().wait(0, second, done));
  Gate gate;
  expect_ok(driver().call_host(0, first, &Gate::wait, &gate));
  expect_ok(driver().record(0, done, first));
  expect_ok(driver().synchronize(0, second));
  gate.open();
  expect_ok(driver().synchronize(0, first));
}

TEST_P(StreamContract, TimeBetweenEventsGoesForward) {
  const Stream on = stream();
  const Event from = event(0, true);
  const Event to = event(0, true);
  EXPECT_FALSE(driver().elapsed(0, from, to).ok());
  expect_ok(driver().record(0, from, on));
  expect_ok(driver().fill(0, device_memory<uint8_t>(1 << 20), 5, 1 << 20, on));
  expect_ok(driver().record(0, to, on));
  expect_ok(driver().synchronize(0, to));
  EXPECT_GE(take(driver().elapsed(0, from, to)), 0.0F);
  const Event timeless = event();
  expect_ok(driver().record(0, timeless, on));
  expect_ok(driver().synchronize(0, timeless));
  EXPECT_FALSE(driver().elapsed(0, from, timeless).ok());
}

TEST_P(StreamContract, QueuedWorkOutlivesItsStreamAndEvent) {
  const Stream on = take(driver().create_stream(0));
  const Event last = take(driver().create_event(0));
  const Stream other = stream();
  Gate gate;
  uint8_t* memory = device_memory<uint8_t>(100);
  expect_ok(driver().call_host(0, on, &Gate::wait, &gate));
  expect_ok(driver().fill(0, memory, 9, 100, on));
  expect_ok(driver().record(0, last, on));
  expect_ok(driver().wait(0, other, last));
  expect_ok(driver().destroy_stream(0, on));
  expect_ok(driver().destroy_event(0, last));
  gate.open();
  expect_ok(driver().synchronize(0, other));
  EXPECT_EQ(from_device(memory, 100), std::vector<uint8_t>(100, 9));
}

// Else work that outlives its stream would use what is no longer there.
TEST_P(StreamContract, ReleasingMemoryWaitsForDestroyedStreamsToo) {
  const Stream on = take(driver().create_stream(0));
  void* memory = take(driver().allocate(0, 100));
  Gate gate;
  expect_ok(driver().call_host(0, on, &Gate::wait, &gate));
  expect_ok(driver().fill(0, memory, 9, 100, on));
  expect_ok(driver().destroy_stream(0, on));
  std::atomic<bool> opened{false};
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    opened.store(true);
    gate.open();
  });
  expect_ok(driver().release(0, memory));
  EXPECT_TRUE(opened.load());
  opener.join();
}

TEST_P(StreamContract, NothingIsCapturedByItself) {
  EXPECT_EQ(take(driver().capture(0, nullptr)).state, Capture::State::None);
  EXPECT_EQ(take(driver().capture(0, stream())).state, Capture::State::None);
}

TEST_P(StreamContract, ManyThreadsShareADriver) {
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t, &right] {
      for (int i = 0; i < 20; ++i) {
        const Stream on = take(driver().create_stream(0));
        auto* memory = static_cast<uint8_t*>(take(driver().allocate(0, 64)));
        std::vector<uint8_t> back(64);
        expect_ok(driver().fill(0, memory, static_cast<uint8_t>(t * 20 + i), 64, on));
        expect_ok(driver().copy(0, back.data(), memory, 64, on));
        expect_ok(driver().synchronize(0, on));
        right += back == std::vector<uint8_t>(64, static_cast<uint8_t>(t * 20 + i));
        expect_ok(driver().release(0, memory));
        expect_ok(driver().destroy_stream(0, on));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 80);
}

}  // namespace
}  // namespace theseus::cuda
