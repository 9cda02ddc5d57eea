// What this process has done, in numbers. Always on.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "base/types.h"
#include "transport/flow_counters.h"

namespace theseus {

// What one communicator has done. Written by one thread at a time, so that counting takes no locked instruction, which
// would wait for the request's last message to leave the core; read by anyone, at any time.
class RequestCounters {
 public:
  RequestCounters();   // shows up in take_snapshot() from now on
  ~RequestCounters();  // what was counted stays in the sums of the process
  RequestCounters(const RequestCounters&) = delete;
  RequestCounters& operator=(const RequestCounters&) = delete;

  // `bytes`: of the caller's buffer, what nccl-tests calls the size.
  void count(Collective collective, uint64_t bytes) {
    Row& row = rows_[static_cast<size_t>(collective)];
    add(row.requests, 1);
    add(row.bytes, bytes);
  }
  void count_failure(Collective collective) { add(rows_[static_cast<size_t>(collective)].failures, 1); }

  struct Row {
    std::atomic<uint64_t> requests{0};
    std::atomic<uint64_t> bytes{0};
    std::atomic<uint64_t> failures{0};
  };
  using Rows = std::array<Row, kCollectives>;
  const Rows& rows() const { return rows_; }

 private:
  static void add(std::atomic<uint64_t>& counter, uint64_t value) {
    counter.store(counter.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
  }
  Rows rows_;
};

struct CollectiveSnapshot {
  Collective collective = Collective::AllReduce;
  uint64_t requests = 0;
  uint64_t bytes = 0;
  uint64_t failures = 0;
};

struct CounterSnapshot {
  std::vector<CollectiveSnapshot> collectives;  // those that ran at least once
  std::vector<FlowSnapshot> flows;              // by the peer's host and rail
};

// Values that change meanwhile may be of slightly different moments.
CounterSnapshot take_snapshot();

}  // namespace theseus
