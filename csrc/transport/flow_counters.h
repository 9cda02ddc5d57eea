// What went to one host over one rail, and for how long data waited to go. Goodput while backlogged is what the health
// of a NIC means: an idle one never looks sick.
//
// One table a process, in a memfd (FlowPage) that the host's agent may read: plain relaxed atomics, each counter alone
// consistent. A flow is backlogged from the moment a socket refuses data until the peer's kernel has acknowledged all
// that was handed over, less the time that an unpaced peer's full receive buffer held it up: a peer that does not read
// is no sick NIC. Bytes and time are taken at the same samples, so their quotient holds over any stretch.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace theseus {

// A row of the table.
struct alignas(64) FlowCounters {
  static constexpr size_t kNameBytes = 64;  // with the closing zero

  char identity[kNameBytes] = {};  // host_identity() of the peer's host, shortened where it is too long
  char host[kNameBytes] = {};      // its name, for people
  uint32_t rail = 0;
  std::atomic<uint32_t> suspect{0};           // ports whose messages take other rails for now
  std::atomic<uint64_t> rescued_messages{0};  // of this rail that went over another
  std::atomic<uint64_t> rescued_bytes{0};
  uint64_t reserved[5] = {};
  std::atomic<uint64_t> bytes{0};         // handed to the kernel, headers included
  std::atomic<uint64_t> acknowledged{0};  // of them, by the peer's kernel
  std::atomic<uint64_t> messages{0};      // handed over whole
  std::atomic<uint64_t> backlogged_ns{0};
  std::atomic<uint64_t> backlogged_bytes{0};  // acknowledged meanwhile
  std::atomic<uint64_t> backlogged_until{0};  // CLOCK_MONOTONIC up to which backlogged_ns counts
  std::atomic<uint64_t> backlogged_ports{0};
  uint64_t reserved_too = 0;

  // Counts [from, to), less what another port of the flow has counted already.
  void add_backlog(uint64_t from, uint64_t to);
};
static_assert(sizeof(FlowCounters) == 256);

// What one port contributes to its flow. Used by one thread at a time.
class FlowMeter {
 public:
  explicit FlowMeter(FlowCounters& flow) : flow_(flow) {}
  ~FlowMeter() { leave(); }
  FlowMeter(const FlowMeter&) = delete;
  FlowMeter& operator=(const FlowMeter&) = delete;

  void handed_over(uint64_t bytes, uint64_t messages) {
    handed_ += bytes;
    flow_.bytes.fetch_add(bytes, std::memory_order_relaxed);
    if (messages > 0) flow_.messages.fetch_add(messages, std::memory_order_relaxed);
  }
  // The socket, or its pacing, does not take what there is.
  void begin_backlog(uint64_t now);
  bool backlogged() const { return backlogged_; }
  // What the kernel says: `unacknowledged` bytes are left of those handed over; the peer's receive buffer has held us
  // up for `held_up_ns` since the connection began. The backlog ends where nothing is `waiting` nor unacknowledged.
  void sample(uint64_t now, uint64_t unacknowledged, uint64_t held_up_ns, bool waiting);
  uint64_t handed() const { return handed_; }
  uint64_t acknowledged() const { return acknowledged_; }
  // Gives up counting: the connection is gone.
  void leave();
  FlowCounters& flow() { return flow_; }

 private:
  FlowCounters& flow_;
  uint64_t handed_ = 0;
  uint64_t acknowledged_ = 0;
  uint64_t held_up_ns_ = 0;
  uint64_t counted_until_ = 0;
  uint64_t not_counted_ = 0;  // of what comes, because the receiver has held us up
  bool backlogged_ = false;
};

struct FlowSnapshot {
  std::string identity;
  std::string host;
  int rail = 0;
  uint64_t bytes = 0;
  uint64_t acknowledged = 0;
  uint64_t messages = 0;
  uint64_t backlogged_ns = 0;
  uint64_t backlogged_bytes = 0;
  uint64_t backlogged_ports = 0;
  uint64_t suspect = 0;
  uint64_t rescued_messages = 0;
  uint64_t rescued_bytes = 0;
};
FlowSnapshot snapshot_of(const FlowCounters& flow);

// The flow to the host of this identity over this rail. Made at first use, kept for the life of the process.
// `host`: its name, where that differs.
FlowCounters& flow_counters(const std::string& identity, int rail, const std::string& host = "");
std::vector<FlowSnapshot> snapshot_flows();

}  // namespace theseus
