// What this process has done, in numbers: plain relaxed atomics that cost a request a nanosecond or two, in a struct
// that can lie in shared memory one day. Always on.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "base/types.h"
#include "transport/flow_counters.h"

namespace theseus {

struct alignas(64) CollectiveCounters {
  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> bytes{0};  // of the caller's buffer: what nccl-tests calls the size
  std::atomic<uint64_t> failures{0};
};

struct ProcessCounters {
  std::array<CollectiveCounters, kCollectives> collectives;

  CollectiveCounters& of(Collective collective) { return collectives[static_cast<size_t>(collective)]; }
};

// This process's, for its whole life.
ProcessCounters& process_counters();

inline void count_request(Collective collective, uint64_t bytes) {
  CollectiveCounters& counters = process_counters().of(collective);
  counters.requests.fetch_add(1, std::memory_order_relaxed);
  counters.bytes.fetch_add(bytes, std::memory_order_relaxed);
}

inline void count_failure(Collective collective) {
  process_counters().of(collective).failures.fetch_add(1, std::memory_order_relaxed);
}

struct CollectiveSnapshot {
  Collective collective = Collective::AllReduce;
  uint64_t requests = 0;
  uint64_t bytes = 0;
  uint64_t failures = 0;
};

struct Snapshot {
  std::vector<CollectiveSnapshot> collectives;  // those that ran at least once
  std::vector<FlowSnapshot> flows;              // by the peer's host and rail
};

// Values that change meanwhile may be of slightly different moments.
Snapshot take_snapshot();

}  // namespace theseus
