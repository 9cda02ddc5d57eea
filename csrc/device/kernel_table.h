// One table of kernels for each instruction set that this library is compiled for. Callers use reduce.h, which picks a
// table once; tests compare the tables with each other.
#pragma once

#include "base/types.h"
#include "device/reduce.h"

namespace theseus {

inline constexpr int kKernelOps = 4;  // Sum, Prod, Max, Min: RedOp's first values

struct KernelTable {
  ReduceKernel reduce[kDataTypes][kKernelOps];
  FoldKernel fold[kDataTypes][kKernelOps];
  ScaleKernel scale[kDataTypes];
};

// In rising order: a processor that has one has all before it.
enum class InstructionSet : int { Baseline = 0, Avx2 = 1, Avx512 = 2 };

// The best this processor and its operating system run. Baseline anywhere but on x86-64.
InstructionSet best_instruction_set();

// `set` must not exceed best_instruction_set().
const KernelTable& kernel_table(InstructionSet set);

extern const KernelTable kBaselineKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

}  // namespace theseus
