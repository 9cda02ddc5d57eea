#include "transport/flow_counters.h"

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/clock.h"

namespace theseus {
namespace {

struct Table {
  std::mutex mutex;
  std::map<std::pair<std::string, int>, std::unique_ptr<FlowCounters>> flows;
};

// Never destroyed: ports of communicators that outlive main() still count.
Table& table() {
  static auto* instance = new Table;
  return *instance;
}

}  // namespace

void FlowCounters::begin_backlog() {
  if (backlogged_ports.fetch_add(1, std::memory_order_relaxed) == 0) {
    backlogged_since.store(now_ns(), std::memory_order_relaxed);
  }
}

void FlowCounters::end_backlog() {
  const uint64_t since = backlogged_since.load(std::memory_order_relaxed);
  if (backlogged_ports.fetch_sub(1, std::memory_order_relaxed) != 1) return;
  const uint64_t now = now_ns();
  if (now > since) backlogged_ns.fetch_add(now - since, std::memory_order_relaxed);
}

FlowCounters& flow_counters(const std::string& host, int rail) {
  const std::lock_guard lock(table().mutex);
  std::unique_ptr<FlowCounters>& flow = table().flows[{host, rail}];
  if (flow == nullptr) flow = std::make_unique<FlowCounters>();
  return *flow;
}

std::vector<FlowSnapshot> snapshot_flows() {
  std::vector<FlowSnapshot> all;
  const std::lock_guard lock(table().mutex);
  for (const auto& [key, flow] : table().flows) {
    FlowSnapshot& one = all.emplace_back();
    one.host = key.first;
    one.rail = key.second;
    one.bytes = flow->bytes.load(std::memory_order_relaxed);
    one.messages = flow->messages.load(std::memory_order_relaxed);
    one.backlogged_ns = flow->backlogged_ns.load(std::memory_order_relaxed);
    if (flow->backlogged_ports.load(std::memory_order_relaxed) > 0) {
      const uint64_t since = flow->backlogged_since.load(std::memory_order_relaxed);
      const uint64_t now = now_ns();
      if (now > since) one.backlogged_ns += now - since;
    }
  }
  return all;
}

}  // namespace theseus
