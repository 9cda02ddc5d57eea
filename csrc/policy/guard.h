// The part of a usable policy that only compares fields with constants, taken out of it, so that most schedules are
// passed over without an evaluation.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "policy/bytecode.h"

namespace theseus::policy {

struct Range {
  Field field = Field::Bytes;
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();  // both may be taken

  bool holds(double value) const { return value >= low && value <= high; }
  bool operator==(const Range&) const = default;
};

struct Guards {
  bool is_never = false;  // no request passes
  Range bytes;
  uint32_t dtypes = ~0u;  // bits by DataType
  uint32_t ops = ~0u;     // bits by RedOp
  std::vector<Range> others;
};

// Takes the guards among the conditions that the policy joins by `and`, and leaves the rest in `code`, which is folded.
// Guards and rest hold together exactly where the policy gave a number that is not 0; where a guard fails, a fault
// that the rest would have had is not seen.
Guards take_guards(Code& code);

}  // namespace theseus::policy
