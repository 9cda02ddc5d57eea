// A reduction as the data path sees it: Avg and PreMulSum resolved.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace theseus {

struct ResolvedOp {
  RedOp op = RedOp::Sum;            // Sum, Prod, Max, Min
  RedOp announced = RedOp::Sum;     // what peers compare
  bool scaled = false;              // every rank scales what it puts in
  bool divide = false;              // integer Avg: the result is divided by the number of ranks
  bool remembered = true;           // built in: means the same at the next call
  const void* scalar_at = nullptr;  // scaled, on a GPU: read when the kernel runs; null: it is `scalar`
  alignas(8) uint8_t scalar[8] = {};
};

}  // namespace theseus
