// What went to one host over one rail, and for how long data waited to go. Goodput while backlogged is what the health
// of a NIC means: an idle one never looks sick.
//
// One table a process, of plain relaxed atomics, so that it can lie in shared memory one day.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace theseus {

struct alignas(64) FlowCounters {
  std::atomic<uint64_t> bytes{0};     // handed to the kernel, headers included
  std::atomic<uint64_t> messages{0};  // handed over whole
  std::atomic<uint64_t> backlogged_ns{0};
  std::atomic<uint64_t> backlogged_since{0};
  std::atomic<uint32_t> backlogged_ports{0};

  // A port has data that it cannot hand over now; it has none left.
  void begin_backlog();
  void end_backlog();
};

struct FlowSnapshot {
  std::string host;  // the peer's
  int rail = 0;
  uint64_t bytes = 0;
  uint64_t messages = 0;
  uint64_t backlogged_ns = 0;  // up to now
};

// Made at first use, kept for the life of the process.
FlowCounters& flow_counters(const std::string& host, int rail);
std::vector<FlowSnapshot> snapshot_flows();

}  // namespace theseus
