// A rank's part of a plan in the form that kernels read (device/kernel_abi.h): loops over the micro-batches made
// explicit, waits as counts of finished instructions, everything in flat arrays.
#pragma once

#include <vector>

#include "device/kernel_abi.h"
#include "schedule/plan.h"

namespace theseus {

struct FlatProgram {
  std::vector<device::Block> blocks;
  std::vector<device::Loop> loops;
  std::vector<device::Step> steps;
  std::vector<device::Wait> waits;
  std::vector<int32_t> operands;

  // Bytes of all arrays, each at a multiple of 16.
  size_t bytes() const;
  // Writes the arrays to `memory` (bytes() long), and returns the Program that finds them at `address`, where whoever
  // runs it will see that memory.
  device::Program place(void* memory, const void* address) const;
};

// `part` is of `plan`, and both are checked (schedule/check.h). Links are numbered as part.connections are. Waits for
// instructions of the same TB are dropped, as its order keeps them.
FlatProgram flatten(const Plan& plan, const RankPlan& part);

// Whether device::kMostOperands is enough for every Fold, which no kernel checks.
bool fits_kernels(const RankPlan& part);

}  // namespace theseus
