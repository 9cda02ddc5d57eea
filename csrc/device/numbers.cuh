// Elements and reductions, one value at a time: results equal device/reduce.h's bit for bit, whose promises hold here.
//   - narrow floating types compute in float and round to the type after every step, to nearest, ties to even;
//   - a NaN result is the type's one canonical NaN; fp8 results saturate, infinity included;
//   - Max and Min: a number beats NaN, -0 is less than +0, and the result is one of the operands' bits;
//   - integers wrap around;
//   - every reduction is commutative to the bit.
// Numbers travel as their bits. Each step is one correctly rounded operation, which nothing fuses with the next.
#pragma once

#include "device/block.cuh"

namespace theseus::device {

// ---- Floats and doubles, as bits. A NaN result is the canonical one. ----

inline constexpr U32 kFloatNan = 0x7fc00000;
inline constexpr U64 kDoubleNan = 0x7ff8000000000000;

#if defined(__CUDACC__)
// Inline PTX costs the compiler less than intrinsics do. A GPU's float NaN is 0x7fffffff, whatever the operands' were
// (CUDA Programming Guide, floating-point standard), so that it is the one result above the canonical NaN; of doubles
// it is an operand's.
#define THESEUS_FLOAT(instruction)                                                                         \
  U32 bits;                                                                                                \
  asm("{ " instruction " %0, %1, %2; min.s32 %0, %0, 0x7fc00000; }" : "=r"(bits) : "r"(left), "r"(right)); \
  return bits
#define THESEUS_DOUBLE(instruction)                 \
  U64 bits;                                         \
  asm("{ .reg .pred nan; " instruction              \
      " %0, %1, %2; setp.nan.f64 nan, %0, %0; "     \
      "selp.b64 %0, 0x7ff8000000000000, %0, nan; }" \
      : "=l"(bits)                                  \
      : "l"(left), "l"(right));                     \
  return bits
THESEUS_INLINE U32 add(U32 left, U32 right) { THESEUS_FLOAT("add.rn.f32"); }
THESEUS_INLINE U32 multiply(U32 left, U32 right) { THESEUS_FLOAT("mul.rn.f32"); }
THESEUS_INLINE U64 add(U64 left, U64 right) { THESEUS_DOUBLE("add.rn.f64"); }
THESEUS_INLINE U64 multiply(U64 left, U64 right) { THESEUS_DOUBLE("mul.rn.f64"); }
#undef THESEUS_FLOAT
#undef THESEUS_DOUBLE
#else
template <class To, class From>
THESEUS_INLINE To same_bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  __builtin_memcpy(&result, &value, sizeof result);
  return result;
}
THESEUS_INLINE U32 canonical(float value) { return value != value ? kFloatNan : same_bits<U32>(value); }
THESEUS_INLINE U64 canonical(double value) { return value != value ? kDoubleNan : same_bits<U64>(value); }
THESEUS_INLINE U32 add(U32 left, U32 right) { return canonical(same_bits<float>(left) + same_bits<float>(right)); }
THESEUS_INLINE U32 multiply(U32 left, U32 right) { return canonical(same_bits<float>(left) * same_bits<float>(right)); }
THESEUS_INLINE U64 add(U64 left, U64 right) { return canonical(same_bits<double>(left) + same_bits<double>(right)); }
THESEUS_INLINE U64 multiply(U64 left, U64 right) {
  return canonical(same_bits<double>(left) * same_bits<double>(right));
}
#endif

// ---- Formats: how an element's bits, its code, become a float's and come back; back come results of the above ----

// As SmallFloat in device/dtypes.h.
template <int kCodeBits, int kMantissaBits, int kBias, U32 kLargest, U32 kSpecial, U32 kNan>
struct SmallFloat {
  enum : U32 { kNanCode = kNan };
  enum : U32 { kLargestNumber = kLargest > kSpecial ? kLargest : (kSpecial == kNan ? kSpecial - 1 : kSpecial) };

  THESEUS_INLINE static U32 decode(U32 code) {
    const U32 magnitude = code & (kSign - 1);
    const U32 sign = (code & kSign) << (32 - kCodeBits);
    const U32 shifted = magnitude << kShift;
    U32 bits = shifted + kRebias;
    if (magnitude < (1u << kMantissaBits)) bits = add(magnitude + kMagic, kMagic | 0x80000000u);
    if (magnitude >= kSpecial) bits = shifted | 0x7f800000u;
    return bits | sign;
  }

  THESEUS_INLINE static U32 encode(U32 bits) {
    const U32 magnitude = bits & 0x7fffffffu;
    const U32 sign = (bits & 0x80000000u) >> (32 - kCodeBits);
    const U32 rounded = magnitude + ((1u << (kShift - 1)) - 1) + (magnitude >> kShift & 1u);
    const U32 normal = (rounded >> kShift) - (kRebias >> kShift);
    U32 code = normal > kLargest ? kLargest : normal;
    // Adding the magic number rounds at the place of the smallest subnormal.
    if (magnitude < kSmallestNormal) code = add(magnitude, kMagic) - kMagic;
    return magnitude > 0x7f800000u ? kNan : code | sign;
  }

 private:
  enum : int { kShift = 23 - kMantissaBits };
  enum : U32 { kSign = 1u << (kCodeBits - 1) };
  enum : U32 { kRebias = static_cast<U32>(127 - kBias) << 23 };
  enum : U32 { kSmallestNormal = static_cast<U32>(128 - kBias) << 23 };
  enum : U32 { kMagic = static_cast<U32>(127 + 23 + 1 - kBias - kMantissaBits) << 23 };
};

using Float8E4M3 = SmallFloat<8, 3, 7, 0x7e, 0x7f, 0x7f>;
using Float8E5M2 = SmallFloat<8, 2, 15, 0x7b, 0x7c, 0x7e>;

#if defined(__CUDACC__)
// The hardware rounds the same way; only its NaN, 0x7fff, has other bits.
struct Half {
  enum : U32 { kNanCode = 0x7e00, kLargestNumber = 0x7c00 };
  THESEUS_INLINE static U32 decode(U32 code) {
    U32 bits;
    asm("cvt.f32.f16 %0, %1;" : "=r"(bits) : "h"(static_cast<U16>(code)));
    return bits;
  }
  THESEUS_INLINE static U32 encode(U32 bits) {
    U16 code;
    asm("{ cvt.rn.f16.f32 %0, %1; min.s16 %0, %0, 0x7e00; }" : "=h"(code) : "r"(bits));
    return code;
  }
};
#else
using Half = SmallFloat<16, 10, 15, 0x7c00, 0x7c00, 0x7e00>;
#endif

// The canonical NaN rounds to its own.
struct Brain {
  enum : U32 { kNanCode = 0x7fc0, kLargestNumber = 0x7f80 };
  THESEUS_INLINE static U32 decode(U32 code) { return code << 16; }
  THESEUS_INLINE static U32 encode(U32 bits) { return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16; }
};

// ---- Numbers: an element type, and how two elements combine. ----

template <class Unsigned, class Ordered>
struct IntegerNumber {
  using Code = Unsigned;
  THESEUS_INLINE static Code sum(Code left, Code right) { return static_cast<Code>(left + right); }
  THESEUS_INLINE static Code product(Code left, Code right) { return static_cast<Code>(left * right); }
  THESEUS_INLINE static Code larger(Code left, Code right) {
    return static_cast<Ordered>(left) > static_cast<Ordered>(right) ? left : right;
  }
  THESEUS_INLINE static Code smaller(Code left, Code right) {
    return static_cast<Ordered>(left) < static_cast<Ordered>(right) ? left : right;
  }
};

// Max and Min of floating types: as signed integers that sort like the numbers. Negative codes have all bits but the
// sign flipped; NaN becomes the integer that always loses, which no number maps to.
template <class Unsigned, class Signed, U64 kLargestNumber, U64 kNanCode>
struct FloatOrder {
  enum : int { kSignShift = 8 * sizeof(Unsigned) - 1 };
  enum : Unsigned { kMagnitude = static_cast<Unsigned>((Unsigned{1} << kSignShift) - 1) };
  enum : Signed {
    kLeast = static_cast<Signed>(static_cast<Unsigned>(Unsigned{1} << kSignShift)),
    kGreatest = static_cast<Signed>(kMagnitude),
  };

  THESEUS_INLINE static Signed flip(Signed code) { return static_cast<Signed>(code < 0 ? code ^ kGreatest : code); }
  THESEUS_INLINE static Signed key(Unsigned code, Signed loser) {
    return (code & kMagnitude) > static_cast<Unsigned>(kLargestNumber) ? loser : flip(static_cast<Signed>(code));
  }
  THESEUS_INLINE static Unsigned code(Signed key, Signed loser) {
    return static_cast<Unsigned>(key == loser ? static_cast<Signed>(kNanCode) : flip(key));
  }
  THESEUS_INLINE static Unsigned larger(Unsigned left, Unsigned right) {
    const Signed a = key(left, kLeast), b = key(right, kLeast);
    return code(a > b ? a : b, kLeast);
  }
  THESEUS_INLINE static Unsigned smaller(Unsigned left, Unsigned right) {
    const Signed a = key(left, kGreatest), b = key(right, kGreatest);
    return code(a < b ? a : b, kGreatest);
  }
};

struct FloatNumber : FloatOrder<U32, I32, 0x7f800000, kFloatNan> {
  using Code = U32;
  THESEUS_INLINE static Code sum(Code left, Code right) { return add(left, right); }
  THESEUS_INLINE static Code product(Code left, Code right) { return multiply(left, right); }
};

struct DoubleNumber : FloatOrder<U64, long long, 0x7ff0000000000000, kDoubleNan> {
  using Code = U64;
  THESEUS_INLINE static Code sum(Code left, Code right) { return add(left, right); }
  THESEUS_INLINE static Code product(Code left, Code right) { return multiply(left, right); }
};

template <class Unsigned, class Signed, class Format>
struct NarrowNumber : FloatOrder<Unsigned, Signed, Format::kLargestNumber, Format::kNanCode> {
  using Code = Unsigned;
  THESEUS_INLINE static Code sum(Code left, Code right) {
    return static_cast<Code>(Format::encode(add(Format::decode(left), Format::decode(right))));
  }
  THESEUS_INLINE static Code product(Code left, Code right) {
    return static_cast<Code>(Format::encode(multiply(Format::decode(left), Format::decode(right))));
  }
};

template <Type kType>
struct NumberOf;
// clang-format off
template <> struct NumberOf<Type::Int8> { using Is = IntegerNumber<U8, signed char>; };
template <> struct NumberOf<Type::Uint8> { using Is = IntegerNumber<U8, U8>; };
template <> struct NumberOf<Type::Int32> { using Is = IntegerNumber<U32, I32>; };
template <> struct NumberOf<Type::Uint32> { using Is = IntegerNumber<U32, U32>; };
template <> struct NumberOf<Type::Int64> { using Is = IntegerNumber<U64, long long>; };
template <> struct NumberOf<Type::Uint64> { using Is = IntegerNumber<U64, U64>; };
template <> struct NumberOf<Type::Float16> { using Is = NarrowNumber<U16, short, Half>; };
template <> struct NumberOf<Type::Float32> { using Is = FloatNumber; };
template <> struct NumberOf<Type::Float64> { using Is = DoubleNumber; };
template <> struct NumberOf<Type::Bfloat16> { using Is = NarrowNumber<U16, short, Brain>; };
template <> struct NumberOf<Type::Float8e4m3> { using Is = NarrowNumber<U8, signed char, Float8E4M3>; };
template <> struct NumberOf<Type::Float8e5m2> { using Is = NarrowNumber<U8, signed char, Float8E5M2>; };
// clang-format on

// What a kernel is made for.
template <Type type_, Reduction reduction_>
struct Numbers {
  static constexpr Type kType = type_;
  static constexpr Reduction kReduction = reduction_;
  using Number = typename NumberOf<kType>::Is;
  using Code = typename Number::Code;
  static constexpr bool kNarrowFloat = kType == Type::Float16 || kType >= Type::Bfloat16;
  // No GPU's instruction converts it the way it has to be.
  static constexpr bool kConverts = kType >= Type::Float8e4m3;

  THESEUS_INLINE static Code combine(Code left, Code right) {
    if constexpr (kReduction == Reduction::Sum) return Number::sum(left, right);
    if constexpr (kReduction == Reduction::Prod) return Number::product(left, right);
    if constexpr (kReduction == Reduction::Max) return Number::larger(left, right);
    if constexpr (kReduction == Reduction::Min) return Number::smaller(left, right);
  }
  // By PreMulSum's factor, or Avg's 1/n.
  THESEUS_INLINE static Code scale(Code value, Code factor) { return Number::product(value, factor); }
};

}  // namespace theseus::device
