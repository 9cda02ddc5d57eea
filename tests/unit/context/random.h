// Reproducible randomness: mt19937_64 and our own distributions, since those of the standard library differ between
// implementations.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "context/log.h"

namespace theseus {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  uint64_t bits() { return engine_(); }
  // 0 to `end` - 1.
  uint64_t below(uint64_t end) { return engine_() % end; }
  // `low` to `high`, both included.
  uint64_t between(uint64_t low, uint64_t high) { return low + below(high - low + 1); }
  bool chance(double probability) { return static_cast<double>(engine_() >> 11) * 0x1p-53 < probability; }
  double number() { return static_cast<double>(static_cast<int64_t>(below(2001)) - 1000) / 16; }
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  std::mt19937_64 engine_;
};

inline std::string name_of(const char* kind, uint64_t number) { return kind + std::to_string(number); }

inline AttributeDefinition exogenous(const std::string& name, uint32_t length = 1, double initial = 0) {
  AttributeDefinition attribute;
  attribute.name = name;
  attribute.length = length;
  attribute.initial = initial;
  return attribute;
}

inline AttributeDefinition hooked(const std::string& name, Hook hook, const std::string& source = {}, double first = 0,
                                  double second = 0, double initial = 0) {
  AttributeDefinition attribute = exogenous(name, 1, initial);
  attribute.hook = hook;
  attribute.source = source;
  attribute.first = first;
  attribute.second = second;
  return attribute;
}

// A record that `log` would take, of any kind that it could take. Names count up: a0, a1 … and s0, s1 …
inline Record random_record(Random& random, const ContextLog& log) {
  std::vector<const Attribute*> settable;
  uint64_t attributes = 0;
  for (; log.find_attribute(name_of("a", attributes)) != nullptr; ++attributes) {
    const Attribute* known = log.find_attribute(name_of("a", attributes));
    if (known->definition.hook == Hook::Exogenous) settable.push_back(known);
  }
  std::vector<uint32_t> alive;
  for (uint32_t id = 0; id < log.schedules(); ++id) {
    if (!log.removed(id, log.position())) alive.push_back(id);
  }
  const uint64_t kind = random.below(10);
  if (settable.empty() || (kind == 0 && attributes < 20)) {
    AttributeDefinition attribute =
        exogenous(name_of("a", attributes), static_cast<uint32_t>(random.between(1, 4)), random.number());
    if (settable.empty() || random.chance(0.5)) return attribute;
    attribute.hook = static_cast<Hook>(random.between(1, kHooks - 1));
    attribute.length = 1;
    if (attribute.hook < Hook::Smooth) return attribute;
    attribute.source = settable[random.below(settable.size())]->definition.name;
    attribute.first = static_cast<double>(random.between(1, 8)) / 8;
    if (attribute.hook == Hook::Hysteresis) attribute.second = attribute.first + 1;
    return attribute;
  }
  if (kind < 3) {
    ScheduleDefinition schedule;
    schedule.name = name_of("s", log.schedules());
    schedule.algorithm = "ring";
    if (!alive.empty() && random.chance(0.5)) {
      schedule.replaces = log.schedule(alive[random.below(alive.size())])->definition.name;
    }
    return schedule;
  }
  if (kind == 3 && alive.size() > 2) {
    return ScheduleRemoval{log.schedule(alive[random.below(alive.size())])->definition.name};
  }
  const Attribute& target = *settable[random.below(settable.size())];
  ExogenousUpdate update{target.definition.name, {}};
  for (uint64_t i = random.between(1, 3); i > 0; --i) {
    update.elements.emplace_back(static_cast<uint32_t>(random.below(target.definition.length)), random.number());
  }
  return update;
}

}  // namespace theseus
