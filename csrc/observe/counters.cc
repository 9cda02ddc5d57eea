#include "observe/counters.h"

#include <mutex>

namespace theseus {

namespace {

using Sums = std::array<CollectiveSnapshot, kCollectives>;

// All communicators of the process, those that are gone as sums.
struct Everybody {
  std::mutex mutex;
  std::vector<const RequestCounters*> live;
  Sums gone;
};

Everybody& everybody() {
  static auto* all = new Everybody;  // never destroyed: threads count until the very end
  return *all;
}

void add_to(Sums& sums, const RequestCounters& counters) {
  for (size_t index = 0; index < sums.size(); ++index) {
    const RequestCounters::Row& row = counters.rows()[index];
    sums[index].requests += row.requests.load(std::memory_order_relaxed);
    sums[index].bytes += row.bytes.load(std::memory_order_relaxed);
    sums[index].failures += row.failures.load(std::memory_order_relaxed);
  }
}

}  // namespace

RequestCounters::RequestCounters() {
  Everybody& all = everybody();
  const std::lock_guard lock(all.mutex);
  all.live.push_back(this);
}

RequestCounters::~RequestCounters() {
  Everybody& all = everybody();
  const std::lock_guard lock(all.mutex);
  add_to(all.gone, *this);
  std::erase(all.live, this);
}

CounterSnapshot take_snapshot() {
  Everybody& all = everybody();
  Sums sums;
  {
    const std::lock_guard lock(all.mutex);
    sums = all.gone;
    for (const RequestCounters* counters : all.live) add_to(sums, *counters);
  }
  CounterSnapshot snapshot;
  for (size_t index = 0; index < sums.size(); ++index) {
    sums[index].collective = static_cast<Collective>(index);
    if (sums[index].requests > 0 || sums[index].failures > 0) snapshot.collectives.push_back(sums[index]);
  }
  snapshot.flows = snapshot_flows();
  return snapshot;
}

}  // namespace theseus
