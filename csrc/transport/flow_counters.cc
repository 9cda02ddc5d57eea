#include "transport/flow_counters.h"

#include <algorithm>

namespace theseus {

void FlowCounters::add_backlog(uint64_t from, uint64_t to) {
  uint64_t until = backlogged_until.load(std::memory_order_relaxed);
  uint64_t begin;
  do {
    begin = std::max(from, until);
    if (begin >= to) return;
  } while (!backlogged_until.compare_exchange_weak(until, to, std::memory_order_relaxed));
  backlogged_ns.fetch_add(to - begin, std::memory_order_relaxed);
}

void FlowMeter::begin_backlog(uint64_t now) {
  if (backlogged_) return;
  backlogged_ = true;
  counted_until_ = now;
  not_counted_ = 0;
  flow_.backlogged_ports.fetch_add(1, std::memory_order_relaxed);
}

void FlowMeter::sample(uint64_t now, uint64_t unacknowledged, uint64_t held_up_ns, bool waiting) {
  // A greeting that went out before may be among what is not acknowledged.
  const uint64_t acknowledged = std::max(acknowledged_, handed_ - std::min(handed_, unacknowledged));
  const uint64_t fresh = acknowledged - acknowledged_;
  acknowledged_ = acknowledged;
  if (fresh > 0) flow_.acknowledged.fetch_add(fresh, std::memory_order_relaxed);
  if (held_up_ns > held_up_ns_) not_counted_ += held_up_ns - held_up_ns_;
  held_up_ns_ = std::max(held_up_ns_, held_up_ns);
  if (!backlogged_) return;
  flow_.backlogged_bytes.fetch_add(fresh, std::memory_order_relaxed);
  if (now > counted_until_) {
    const uint64_t held_up = std::min(not_counted_, now - counted_until_);
    not_counted_ -= held_up;
    flow_.add_backlog(counted_until_ + held_up, now);
    counted_until_ = now;
  }
  if (!waiting && acknowledged_ == handed_) leave();
}

void FlowMeter::leave() {
  if (!backlogged_) return;
  backlogged_ = false;
  flow_.backlogged_ports.fetch_sub(1, std::memory_order_relaxed);
}

FlowSnapshot snapshot_of(const FlowCounters& flow) {
  const auto value = [](const auto& counter) { return counter.load(std::memory_order_relaxed); };
  // What another process wrote may lack its zero.
  const auto text = [](const char* bytes) {
    return std::string(bytes, std::find(bytes, bytes + FlowCounters::kNameBytes, '\0'));
  };
  FlowSnapshot one;
  one.identity = text(flow.identity);
  one.host = text(flow.host);
  one.rail = static_cast<int>(flow.rail);
  one.bytes = value(flow.bytes);
  one.acknowledged = value(flow.acknowledged);
  one.messages = value(flow.messages);
  one.backlogged_ns = value(flow.backlogged_ns);
  one.backlogged_bytes = value(flow.backlogged_bytes);
  one.backlogged_ports = value(flow.backlogged_ports);
  one.suspect = value(flow.suspect);
  one.rescued_messages = value(flow.rescued_messages);
  one.rescued_bytes = value(flow.rescued_bytes);
  return one;
}

}  // namespace theseus
