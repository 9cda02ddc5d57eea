#include "context/hooks.h"

#include "context/digest.h"

namespace theseus {
namespace {

constexpr double kMicrosecond = 1e-6;

// Seconds from one agreed time to a later one.
double seconds_between(uint64_t from_us, uint64_t to_us) {
  return to_us <= from_us ? 0 : static_cast<double>(to_us - from_us) * kMicrosecond;
}

}  // namespace

bool Hooks::install(const Snapshot& snapshot, uint64_t request, uint64_t time_us) {
  bool moved = false;
  // By ascending id, so that a source has its new values before the hooks that follow it: a source is defined earlier.
  for (const Attribute& attribute : snapshot.attributes) {
    const auto [found, is_new] = states_.try_emplace(attribute.id);
    const std::vector<double> before = found->second.values;
    State& state = found->second;
    if (is_new) {
      state.hook = attribute.definition.hook;
      state.initial = attribute.definition.initial;
      state.since_request = request;
      state.since_us = time_us;
      state.values.assign(attribute.definition.length, attribute.definition.initial);
    } else {
      ++state.count;
    }
    step(state, attribute, time_us);
    moved |= state.values != before;
  }
  return moved;
}

void Hooks::step(State& state, const Attribute& attribute, uint64_t time_us) {
  const AttributeDefinition& definition = attribute.definition;
  const std::vector<double>* source =
      attribute.source < 0 ? nullptr : &states_[static_cast<uint32_t>(attribute.source)].values;
  switch (definition.hook) {
    case Hook::Exogenous: state.values = attribute.values; return;
    case Hook::Requests: return;  // values() does it
    case Hook::Agreements: state.values[0] = definition.initial + static_cast<double>(state.count); return;
    case Hook::Seconds: state.values[0] = definition.initial + seconds_between(state.since_us, time_us); return;
    case Hook::Smooth:
      for (size_t i = 0; i < state.values.size(); ++i) {
        state.values[i] += definition.first * ((*source)[i] - state.values[i]);
      }
      return;
    case Hook::Hysteresis:
      for (size_t i = 0; i < state.values.size(); ++i) {
        if ((*source)[i] < definition.first) state.values[i] = 1;
        if ((*source)[i] > definition.second) state.values[i] = 0;
      }
      return;
    case Hook::Dwell:
      if (state.values == *source) return;
      if (state.has_changed && seconds_between(state.changed_us, time_us) < definition.first) return;
      state.values = *source;
      state.has_changed = true;
      state.changed_us = time_us;
      return;
  }
}

const std::vector<double>& Hooks::values(uint32_t attribute, uint64_t request) {
  static const std::vector<double> none;
  const auto found = states_.find(attribute);
  if (found == states_.end()) return none;
  State& state = found->second;
  if (state.hook == Hook::Requests) {
    const uint64_t count = request > state.since_request ? request - state.since_request : 0;
    state.values[0] = state.initial + static_cast<double>(count);
  }
  return state.values;
}

uint64_t Hooks::digest() const {
  Digest digest;
  for (const auto& [id, state] : states_) {
    digest.add(uint64_t{id}).add(state.since_request).add(state.since_us).add(state.count);
    digest.add(uint64_t{state.has_changed}).add(state.changed_us);
    // What values() left there depends on when it was asked; the rest follows from since_request.
    if (state.hook == Hook::Requests) continue;
    for (const double value : state.values) digest.add(value);
  }
  return digest.value();
}

}  // namespace theseus
