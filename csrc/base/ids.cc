#include "base/ids.h"

#include <cstdio>

#include "base/random.h"

namespace theseus {
namespace {

// The finaliser of MurmurHash3: every input bit reaches every output bit.
uint64_t mix(uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdu;
  value ^= value >> 33;
  value *= 0xc4ceb9fe1a85ec53u;
  return value ^ (value >> 33);
}

}  // namespace

std::string Id128::to_string() const {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(high),
                static_cast<unsigned long long>(low));
  return text;
}

Id128 random_id() {
  Id128 id;
  while (id.is_zero()) fill_random(&id, sizeof id);
  return id;
}

Id128 derive_id(const Id128& parent, std::string_view label) {
  uint64_t first = mix(parent.high ^ 0x243f6a8885a308d3u);
  uint64_t second = mix(parent.low ^ 0x13198a2e03707344u);
  for (const char character : label) {
    first = mix(first * 31 + static_cast<unsigned char>(character) + second);
    second = mix(second ^ (first + 0x9e3779b97f4a7c15u));
  }
  second = mix(second ^ label.size());
  first = mix(first ^ second);
  return {first, second | 1};  // never zero
}

}  // namespace theseus
