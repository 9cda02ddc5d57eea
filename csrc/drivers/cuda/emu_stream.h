// Streams and events of the emulator. A stream is an ordered queue that one thread empties; an event counts its
// records and which of them were reached. A stream under capture collects its work in a graph instead.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "drivers/cuda/api.h"
#include "drivers/cuda/emu_threads.h"

namespace theseus::cuda {

using EmuWork = std::function<void()>;

// What was captured, in an order that keeps every dependency: that in which it was submitted.
struct EmuGraph {
  uint64_t id = 0;
  bool valid = true;
  std::vector<EmuWork> work;
  std::mutex mutex;  // streams that joined one capture may be used by different threads
};

class EmuEvent {
 public:
  // The number of a new record, which reach() is to be called with.
  uint64_t record(const std::shared_ptr<EmuGraph>& graph);
  void reach(uint64_t record);
  void wait_for(uint64_t record);

  struct Last {
    uint64_t record = 0;              // 0: none
    bool captured = false;            // recorded under a capture
    std::shared_ptr<EmuGraph> graph;  // that one; null: it is gone
    bool reached = true;
    uint64_t reached_ns = 0;
  };
  Last last() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable reached_changed_;
  uint64_t recorded_ = 0;
  uint64_t reached_ = 0;
  uint64_t reached_ns_ = 0;
  bool captured_ = false;
  std::weak_ptr<EmuGraph> graph_;  // whose work holds this event
};

class EmuStream : public std::enable_shared_from_this<EmuStream> {
 public:
  // `before` runs before each piece of work: faults. `blocking`: see Emulator::submit().
  EmuStream(int device, bool blocking, EmuWork before)
      : device_(device), blocking_(blocking), before_(std::move(before)) {}
  // Starts the thread, which lives until close() was called and the queue is empty.
  void start(EmuThreads& threads);
  void close();

  int device() const { return device_; }
  bool blocking() const { return blocking_; }
  void submit(EmuWork work);
  // How much was submitted so far, 0 where all of it is done; and waiting for that much, in another stream's thread.
  uint64_t mark() const;
  void wait_for(uint64_t mark);
  // InvalidUsage under capture, which it spoils, as CUDA's does.
  Status synchronize();
  Result<bool> query();

  std::shared_ptr<EmuGraph> graph() const;
  // InvalidUsage where the stream is under capture, which is spoilt: `call` cannot be part of it.
  Status refuse_capture_of(const char* call);
  Status begin_capture(std::shared_ptr<EmuGraph> graph);
  void leave_capture();

 private:
  void drain();
  Status refuse_capture(const char* call);

  const int device_;
  const bool blocking_;
  const EmuWork before_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<EmuWork> queue_;
  uint64_t submitted_ = 0;
  uint64_t finished_ = 0;
  bool closed_ = false;
  std::shared_ptr<EmuGraph> graph_;
};

}  // namespace theseus::cuda
