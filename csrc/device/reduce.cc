#include "device/reduce.h"

#include <cstdint>

#include "device/dtypes.h"
#include "device/kernel_table.h"

namespace theseus {

InstructionSet best_instruction_set() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("f16c")) return InstructionSet::Baseline;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return InstructionSet::Avx512;
  }
  return InstructionSet::Avx2;
#else
  return InstructionSet::Baseline;
#endif
}

const KernelTable& kernel_table(InstructionSet set) {
#if defined(__x86_64__)
  if (set == InstructionSet::Avx512) return kAvx512Kernels;
  if (set == InstructionSet::Avx2) return kAvx2Kernels;
#endif
  static_cast<void>(set);
  return kBaselineKernels;
}

namespace {

const KernelTable& best_table() {
  static const KernelTable& table = kernel_table(best_instruction_set());
  return table;
}

bool has_kernel(RedOp op) { return static_cast<int>(op) < kKernelOps; }

// `Wide` holds every element and every number of ranks that matters, so that ranks do not wrap in a narrow type. Where
// it is floating, the rounded quotient truncates to the exact one, and the loop becomes vectors: |element| < 2^(p/2)
// for a mantissa of p bits keeps a quotient that is no integer further than its rounding error from the next one.
template <class T, class Wide, class Whole>
void divide(void* data, size_t count, int ranks) {
  char* at = static_cast<char*>(data);
  for (size_t i = 0; i < count; ++i, at += sizeof(T)) {
    T element;
    __builtin_memcpy(&element, at, sizeof(T));
    const Wide quotient = static_cast<Wide>(element) / static_cast<Wide>(ranks);
    element = static_cast<T>(static_cast<Whole>(quotient));
    __builtin_memcpy(at, &element, sizeof(T));
  }
}

template <class Format>
void write_narrow(float value, void* out) {
  const auto code = static_cast<typename Format::Code>(Format::template encode<ScalarLanes>(value));
  __builtin_memcpy(out, &code, sizeof(code));
}

}  // namespace

ReduceKernel reduce_kernel(DataType type, RedOp op) {
  return has_kernel(op) ? best_table().reduce[static_cast<int>(type)][static_cast<int>(op)] : nullptr;
}

FoldKernel fold_kernel(DataType type, RedOp op) {
  return has_kernel(op) ? best_table().fold[static_cast<int>(type)][static_cast<int>(op)] : nullptr;
}

ScaleKernel scale_kernel(DataType type) { return best_table().scale[static_cast<int>(type)]; }

void divide_in_place(DataType type, void* data, size_t count, int ranks) {
  using Divide = void (*)(void*, size_t, int);
  constexpr Divide kDivides[] = {divide<int8_t, float, int32_t>,    divide<uint8_t, float, int32_t>,
                                 divide<int32_t, double, int32_t>,  divide<uint32_t, double, uint32_t>,
                                 divide<int64_t, int64_t, int64_t>, divide<uint64_t, uint64_t, uint64_t>};
  if (!is_floating(type)) kDivides[static_cast<int>(type)](data, count, ranks);
}

void reciprocal(DataType type, int ranks, void* out) {
  const double exact = 1.0 / ranks;
  const float single = static_cast<float>(exact);
  switch (type) {
    case DataType::Float64: __builtin_memcpy(out, &exact, sizeof(exact)); return;
    case DataType::Float32: __builtin_memcpy(out, &single, sizeof(single)); return;
    case DataType::Float16: return write_narrow<Half>(single, out);
    case DataType::Bfloat16: return write_narrow<Brain>(single, out);
    case DataType::Float8e4m3: return write_narrow<Float8E4M3>(single, out);
    case DataType::Float8e5m2: return write_narrow<Float8E5M2>(single, out);
    default: return;
  }
}

}  // namespace theseus
