// Policies that differ in their constants alone, such as `2 + bytes / 1500` and `3 + bytes / 1700`: run side by side,
// each instruction over all of them, in about the time that one of them takes.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "policy/bytecode.h"

namespace theseus::policy {

inline constexpr size_t kLanes = 16;
using LaneNumbers = std::array<double, kLanes>;

// What a code does: equal codes have equal keys. Its first `shape_bytes` are equal where all but constants is.
struct CodeKey {
  std::string text;
  size_t shape_bytes = 0;
};
CodeKey key_of(const Code& code);

// Whether the code only computes numbers, without control flow: lanes cannot part.
bool fits_lanes(const Code& code);

class Lanes {
 public:
  // One lane, for any code.
  explicit Lanes(std::shared_ptr<const Code> code);

  // A further lane, for a code of the same shape, which fits lanes. Not when full.
  void add(const Code& code);
  bool is_full() const { return size_ == kLanes; }
  size_t size() const { return size_; }

  void run(const Fields& fields, AttributeValues& values);
  // What policy::run() gives for that lane's code; NaN, which no policy's value is, where it has a fault.
  double value(size_t lane) const { return values_[lane]; }

 private:
  void run_all(const Fields& fields, AttributeValues& values);

  std::shared_ptr<const Code> code_;  // of the first lane
  std::vector<double> constants_;     // kLanes for each Constant, in order; empty with one lane
  size_t size_ = 1;
  LaneNumbers values_ = {};
};

}  // namespace theseus::policy
