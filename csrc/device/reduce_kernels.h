// The kernels' text, compiled once for each instruction set (vectors.h says what to define first).
#pragma once

#include <utility>

#include "device/copy.h"
#include "device/dtypes.h"
#include "device/kernel_table.h"
#include "device/operations.h"
#include "device/vectors.h"

namespace theseus {
namespace {

// Packs that are combined at once, to hide the latency of loads and of one fold step behind the next pack's.
constexpr int kUnroll = 4;

template <class Operation>
THESEUS_TARGET void reduce(void* dst, const void* left, const void* right, size_t count) {
  using Stored = typename Operation::Stored;
  constexpr size_t kPack = sizeof(Stored);
  char* const out = static_cast<char*>(dst);
  const char* const a = static_cast<const char*>(left);
  const char* const b = static_cast<const char*>(right);
  const size_t bytes = count * sizeof(typename Operation::Element);
  size_t at = 0;
  for (; bytes - at >= kUnroll * kPack; at += kUnroll * kPack) {
#pragma GCC unroll 4
    for (int i = 0; i < kUnroll; ++i) {
      const size_t here = at + i * kPack;
      const auto x = Operation::enter(load<Stored>(a + here));
      const auto y = Operation::enter(load<Stored>(b + here));
      store(out + here, Operation::leave(Operation::step(x, y)));
    }
  }
  for (; bytes - at >= kPack; at += kPack) {
    const auto x = Operation::enter(load<Stored>(a + at));
    const auto y = Operation::enter(load<Stored>(b + at));
    store(out + at, Operation::leave(Operation::step(x, y)));
  }
  if (at < bytes) {
    const auto x = Operation::enter(load_part<Stored>(a + at, bytes - at));
    const auto y = Operation::enter(load_part<Stored>(b + at, bytes - at));
    store_part(out + at, Operation::leave(Operation::step(x, y)), bytes - at);
  }
}

// The accumulators of kPacks packs stay in registers while the sources go by; the number of sources needs no template,
// since one turn of the inner loop costs next to nothing beside kPacks loads and steps.
template <class Operation, int kPacks>
THESEUS_LANES_INLINE void fold_packs(char* out, const char* const* sources, int sources_count, size_t at) {
  using Stored = typename Operation::Stored;
  typename Operation::Held held[kPacks];
#pragma GCC unroll 4
  for (int i = 0; i < kPacks; ++i) {
    const auto x = Operation::enter(load<Stored>(sources[0] + at + i * sizeof(Stored)));
    const auto y = Operation::enter(load<Stored>(sources[1] + at + i * sizeof(Stored)));
    held[i] = Operation::step(x, y);
  }
  for (int s = 2; s < sources_count; ++s) {
    const char* const source = sources[s] + at;
#pragma GCC unroll 4
    for (int i = 0; i < kPacks; ++i) {
      held[i] = Operation::step(Operation::round(held[i]), Operation::enter(load<Stored>(source + i * sizeof(Stored))));
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kPacks; ++i) store(out + at + i * sizeof(Stored), Operation::leave(held[i]));
}

template <class Operation>
THESEUS_TARGET void fold(void* dst, const void* const* sources, int sources_count, size_t count) {
  using Stored = typename Operation::Stored;
  constexpr size_t kPack = sizeof(Stored);
  const size_t bytes = count * sizeof(typename Operation::Element);
  if (sources_count == 1) {
    if (dst != sources[0]) copy_bytes(dst, sources[0], bytes);
    return;
  }
  char* const out = static_cast<char*>(dst);
  const char* const* const from = reinterpret_cast<const char* const*>(sources);
  size_t at = 0;
  for (; bytes - at >= kUnroll * kPack; at += kUnroll * kPack) {
    fold_packs<Operation, kUnroll>(out, from, sources_count, at);
  }
  for (; bytes - at >= kPack; at += kPack) fold_packs<Operation, 1>(out, from, sources_count, at);
  if (at == bytes) return;
  auto held = Operation::step(Operation::enter(load_part<Stored>(from[0] + at, bytes - at)),
                              Operation::enter(load_part<Stored>(from[1] + at, bytes - at)));
  for (int s = 2; s < sources_count; ++s) {
    held = Operation::step(Operation::round(held), Operation::enter(load_part<Stored>(from[s] + at, bytes - at)));
  }
  store_part(out + at, Operation::leave(held), bytes - at);
}

// `Operation` is the type's Prod.
template <class Operation>
THESEUS_TARGET void scale(void* dst, const void* src, size_t count, const void* scalar) {
  using Stored = typename Operation::Stored;
  using Element = typename Operation::Element;
  constexpr size_t kPack = sizeof(Stored);
  Element factor_element;
  __builtin_memcpy(&factor_element, scalar, sizeof(Element));
  Stored factor_pack;
  for (size_t i = 0; i < kPack / sizeof(Element); ++i) factor_pack[i] = factor_element;
  const auto factor = Operation::enter(factor_pack);
  char* const out = static_cast<char*>(dst);
  const char* const from = static_cast<const char*>(src);
  const size_t bytes = count * sizeof(Element);
  size_t at = 0;
  for (; bytes - at >= kPack; at += kPack) {
    store(out + at, Operation::leave(Operation::step(Operation::enter(load<Stored>(from + at)), factor)));
  }
  if (at < bytes) {
    const auto x = Operation::enter(load_part<Stored>(from + at, bytes - at));
    store_part(out + at, Operation::leave(Operation::step(x, factor)), bytes - at);
  }
}

// ---- The table ----

template <DataType kType>
struct ElementType;
template <class SignedT, class UnsignedT>
struct IntegerElement {
  template <RedOp kOp>
  using Arithmetic = NativeArithmetic<UnsignedT, kOp>;
  template <RedOp kOp>
  using Order = IntegerOrder<SignedT, kOp>;
};
template <class T>
struct NativeFloatElement {
  template <RedOp kOp>
  using Arithmetic = NativeArithmetic<T, kOp>;
  template <RedOp kOp>
  using Order = NativeFloatOrder<T, kOp>;
};
template <class Format>
struct NarrowElement {
  template <RedOp kOp>
  using Arithmetic = NarrowArithmetic<Format, kOp>;
  template <RedOp kOp>
  using Order = FloatOrder<std::make_signed_t<typename Format::Code>, Format::kLargestNumber, Format::kNanCode, kOp>;
};

struct BrainElement : NarrowElement<Brain> {
  template <RedOp kOp>
  using Arithmetic = BrainArithmetic<kOp>;
};

// clang-format off
template <> struct ElementType<DataType::Int8> : IntegerElement<int8_t, uint8_t> {};
template <> struct ElementType<DataType::Uint8> : IntegerElement<uint8_t, uint8_t> {};
template <> struct ElementType<DataType::Int32> : IntegerElement<int32_t, uint32_t> {};
template <> struct ElementType<DataType::Uint32> : IntegerElement<uint32_t, uint32_t> {};
template <> struct ElementType<DataType::Int64> : IntegerElement<int64_t, uint64_t> {};
template <> struct ElementType<DataType::Uint64> : IntegerElement<uint64_t, uint64_t> {};
template <> struct ElementType<DataType::Float32> : NativeFloatElement<float> {};
template <> struct ElementType<DataType::Float64> : NativeFloatElement<double> {};
template <> struct ElementType<DataType::Float16> : NarrowElement<Half> {};
template <> struct ElementType<DataType::Bfloat16> : BrainElement {};
template <> struct ElementType<DataType::Float8e4m3> : NarrowElement<Float8E4M3> {};
template <> struct ElementType<DataType::Float8e5m2> : NarrowElement<Float8E5M2> {};
// clang-format on

template <DataType kType>
constexpr void fill_row(KernelTable& table) {
  using Type = ElementType<kType>;
  using Sum = typename Type::template Arithmetic<RedOp::Sum>;
  using Prod = typename Type::template Arithmetic<RedOp::Prod>;
  using Max = typename Type::template Order<RedOp::Max>;
  using Min = typename Type::template Order<RedOp::Min>;
  constexpr int kRow = static_cast<int>(kType);
  const ReduceKernel reduces[kKernelOps] = {reduce<Sum>, reduce<Prod>, reduce<Max>, reduce<Min>};
  const FoldKernel folds[kKernelOps] = {fold<Sum>, fold<Prod>, fold<Max>, fold<Min>};
  for (int op = 0; op < kKernelOps; ++op) {
    table.reduce[kRow][op] = reduces[op];
    table.fold[kRow][op] = folds[op];
  }
  table.scale[kRow] = scale<Prod>;
}

template <int... kRows>
constexpr KernelTable make_table(std::integer_sequence<int, kRows...>) {
  KernelTable table = {};
  (fill_row<static_cast<DataType>(kRows)>(table), ...);
  return table;
}

constexpr KernelTable make_table() { return make_table(std::make_integer_sequence<int, kDataTypes>()); }

}  // namespace
}  // namespace theseus
