// 64 well-mixed bits over a sequence of numbers and texts. Against accidents, not against an adversary.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace theseus {

class Digest {
 public:
  Digest& add(uint64_t value) {
    state_ = mix(state_ ^ value) + 0x9e3779b97f4a7c15ull;
    return *this;
  }
  // By its bits: -0.0 and 0.0 differ.
  Digest& add(double value) { return add(std::bit_cast<uint64_t>(value)); }
  Digest& add(std::string_view text) {
    add(uint64_t{text.size()});
    for (; text.size() >= sizeof(uint64_t); text.remove_prefix(sizeof(uint64_t))) add(word(text, sizeof(uint64_t)));
    return text.empty() ? *this : add(word(text, text.size()));
  }
  uint64_t value() const { return mix(state_); }

 private:
  static uint64_t word(std::string_view text, size_t size) {
    uint64_t bits = 0;
    std::memcpy(&bits, text.data(), size);
    return bits;
  }
  static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
    return x ^ (x >> 32);
  }
  uint64_t state_ = 0x243f6a8885a308d3ull;
};

}  // namespace theseus
