// Elements and reductions, one value at a time: results equal device/reduce.h's bit for bit, whose promises hold here.
//   - narrow floating types compute in float and round to the type after every step, to nearest, ties to even;
//   - a NaN result is the type's one canonical NaN; fp8 results saturate, infinity included;
//   - Max and Min: a number beats NaN, -0 is less than +0, and the result is one of the operands' bits;
//   - integers wrap around;
//   - every reduction is commutative to the bit.
// Each step is one correctly rounded operation: the intrinsics keep nvcc from contracting two into a fused one.
#pragma once

#include "device/block.cuh"

namespace theseus::device {

#if defined(__CUDACC__)
THESEUS_INLINE U32 bits_of(float value) { return __float_as_uint(value); }
THESEUS_INLINE float float_of(U32 bits) { return __uint_as_float(bits); }
THESEUS_INLINE U64 bits_of(double value) { return static_cast<U64>(__double_as_longlong(value)); }
THESEUS_INLINE double double_of(U64 bits) { return __longlong_as_double(static_cast<long long>(bits)); }
THESEUS_INLINE float add(float left, float right) { return __fadd_rn(left, right); }
THESEUS_INLINE float multiply(float left, float right) { return __fmul_rn(left, right); }
THESEUS_INLINE double add(double left, double right) { return __dadd_rn(left, right); }
THESEUS_INLINE double multiply(double left, double right) { return __dmul_rn(left, right); }
#else
template <class To, class From>
THESEUS_INLINE To same_bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  __builtin_memcpy(&result, &value, sizeof result);
  return result;
}
THESEUS_INLINE U32 bits_of(float value) { return same_bits<U32>(value); }
THESEUS_INLINE float float_of(U32 bits) { return same_bits<float>(bits); }
THESEUS_INLINE U64 bits_of(double value) { return same_bits<U64>(value); }
THESEUS_INLINE double double_of(U64 bits) { return same_bits<double>(bits); }
THESEUS_INLINE float add(float left, float right) { return left + right; }
THESEUS_INLINE float multiply(float left, float right) { return left * right; }
THESEUS_INLINE double add(double left, double right) { return left + right; }
THESEUS_INLINE double multiply(double left, double right) { return left * right; }
#endif

// ---- Formats: how an element's bits, its code, become a float and come back ----

// As SmallFloat in device/dtypes.h.
template <int kCodeBits, int kMantissaBits, int kBias, U32 kLargest, U32 kSpecial, U32 kNan>
struct SmallFloat {
  static constexpr U32 kNanCode = kNan;
  static constexpr U32 kLargestNumber = kLargest > kSpecial ? kLargest : (kSpecial == kNan ? kSpecial - 1 : kSpecial);

  THESEUS_INLINE static float decode(U32 code) {
    const U32 magnitude = code & (kSign - 1);
    const U32 sign = (code & kSign) << (32 - kCodeBits);
    const U32 shifted = magnitude << kShift;
    U32 bits = shifted + kRebias;
    if (magnitude < (1u << kMantissaBits)) bits = bits_of(add(float_of(magnitude + kMagic), -float_of(kMagic)));
    if (magnitude >= kSpecial) bits = shifted | 0x7f800000u;
    return float_of(bits | sign);
  }

  THESEUS_INLINE static U32 encode(float value) {
    const U32 bits = bits_of(value);
    const U32 magnitude = bits & 0x7fffffffu;
    const U32 sign = (bits & 0x80000000u) >> (32 - kCodeBits);
    const U32 rounded = magnitude + ((1u << (kShift - 1)) - 1) + (magnitude >> kShift & 1u);
    const U32 normal = (rounded >> kShift) - (kRebias >> kShift);
    U32 code = normal > kLargest ? kLargest : normal;
    // Adding the magic number rounds at the place of the smallest subnormal.
    if (magnitude < kSmallestNormal) code = bits_of(add(float_of(magnitude), float_of(kMagic))) - kMagic;
    return magnitude > 0x7f800000u ? kNan : code | sign;
  }

 private:
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr U32 kSign = 1u << (kCodeBits - 1);
  static constexpr U32 kRebias = static_cast<U32>(127 - kBias) << 23;
  static constexpr U32 kSmallestNormal = static_cast<U32>(128 - kBias) << 23;
  static constexpr U32 kMagic = static_cast<U32>(127 + 23 + 1 - kBias - kMantissaBits) << 23;
};

using Float8E4M3 = SmallFloat<8, 3, 7, 0x7e, 0x7f, 0x7f>;
using Float8E5M2 = SmallFloat<8, 2, 15, 0x7b, 0x7c, 0x7e>;

#if defined(__CUDACC__)
// The hardware rounds the same way; only its NaN has other bits.
struct Half {
  static constexpr U32 kNanCode = 0x7e00;
  static constexpr U32 kLargestNumber = 0x7c00;
  THESEUS_INLINE static float decode(U32 code) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<U16>(code)));
    return value;
  }
  THESEUS_INLINE static U32 encode(float value) {
    U16 code;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(value));
    return value != value ? kNanCode : code;
  }
};
#else
using Half = SmallFloat<16, 10, 15, 0x7c00, 0x7c00, 0x7e00>;
#endif

struct Brain {
  static constexpr U32 kNanCode = 0x7fc0;
  static constexpr U32 kLargestNumber = 0x7f80;
  THESEUS_INLINE static float decode(U32 code) { return float_of(code << 16); }
  THESEUS_INLINE static U32 encode(float value) {
    const U32 bits = bits_of(value);
    return value != value ? kNanCode : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  }
};

// ---- Numbers: an element type, and how two elements combine. Elements travel as their bits. ----

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
  static constexpr int kSignShift = 8 * sizeof(Unsigned) - 1;
  static constexpr Unsigned kMagnitude = static_cast<Unsigned>((Unsigned{1} << kSignShift) - 1);
  static constexpr Signed kLeast = static_cast<Signed>(static_cast<Unsigned>(~kMagnitude));
  static constexpr Signed kGreatest = static_cast<Signed>(kMagnitude);

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

struct FloatNumber : FloatOrder<U32, I32, 0x7f800000, 0x7fc00000> {
  using Code = U32;
  THESEUS_INLINE static Code canonical(float value) { return value != value ? 0x7fc00000u : bits_of(value); }
  THESEUS_INLINE static Code sum(Code left, Code right) { return canonical(add(float_of(left), float_of(right))); }
  THESEUS_INLINE static Code product(Code left, Code right) {
    return canonical(multiply(float_of(left), float_of(right)));
  }
};

struct DoubleNumber : FloatOrder<U64, long long, 0x7ff0000000000000, 0x7ff8000000000000> {
  using Code = U64;
  THESEUS_INLINE static Code canonical(double value) { return value != value ? 0x7ff8000000000000u : bits_of(value); }
  THESEUS_INLINE static Code sum(Code left, Code right) { return canonical(add(double_of(left), double_of(right))); }
  THESEUS_INLINE static Code product(Code left, Code right) {
    return canonical(multiply(double_of(left), double_of(right)));
  }
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
template <> struct NumberOf<Type::Int8> : IntegerNumber<U8, signed char> {};
template <> struct NumberOf<Type::Uint8> : IntegerNumber<U8, U8> {};
template <> struct NumberOf<Type::Int32> : IntegerNumber<U32, I32> {};
template <> struct NumberOf<Type::Uint32> : IntegerNumber<U32, U32> {};
template <> struct NumberOf<Type::Int64> : IntegerNumber<U64, long long> {};
template <> struct NumberOf<Type::Uint64> : IntegerNumber<U64, U64> {};
template <> struct NumberOf<Type::Float16> : NarrowNumber<U16, short, Half> {};
template <> struct NumberOf<Type::Float32> : FloatNumber {};
template <> struct NumberOf<Type::Float64> : DoubleNumber {};
template <> struct NumberOf<Type::Bfloat16> : NarrowNumber<U16, short, Brain> {};
template <> struct NumberOf<Type::Float8e4m3> : NarrowNumber<U8, signed char, Float8E4M3> {};
template <> struct NumberOf<Type::Float8e5m2> : NarrowNumber<U8, signed char, Float8E5M2> {};
// clang-format on

// What a kernel is made for.
template <Type type_, Reduction reduction_>
struct Numbers {
  static constexpr Type kType = type_;
  static constexpr Reduction kReduction = reduction_;
  using Number = NumberOf<kType>;
  using Code = typename Number::Code;
  static constexpr bool kNarrowFloat = kType == Type::Float16 || kType >= Type::Bfloat16;

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
