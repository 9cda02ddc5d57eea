#include "observe/counters.h"

namespace theseus {

ProcessCounters& process_counters() {
  static auto* counters = new ProcessCounters;  // never destroyed: threads count until the very end
  return *counters;
}

Snapshot take_snapshot() {
  Snapshot snapshot;
  for (int index = 0; index < kCollectives; ++index) {
    const auto collective = static_cast<Collective>(index);
    const CollectiveCounters& counters = process_counters().of(collective);
    CollectiveSnapshot one;
    one.collective = collective;
    one.requests = counters.requests.load(std::memory_order_relaxed);
    one.bytes = counters.bytes.load(std::memory_order_relaxed);
    one.failures = counters.failures.load(std::memory_order_relaxed);
    if (one.requests > 0 || one.failures > 0) snapshot.collectives.push_back(one);
  }
  snapshot.flows = snapshot_flows();
  return snapshot;
}

}  // namespace theseus
