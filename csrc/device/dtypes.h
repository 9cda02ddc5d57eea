// Conversions between float and the narrow floating element types, written once for one value and for many.
//
// Every function is a template on a "lanes" type that names a float, its bits and its signed bits: ScalarLanes is one
// value, reduce_kernels.h adds vectors of several. Comparison and ?: act lane by lane on vectors, so the text is shared
// and the scalar and the vector path cannot drift apart.
//
// Conversion to a narrow type rounds to nearest, ties to even, and turns every NaN into one canonical NaN, whose bits
// therefore do not depend on operand order. fp16 and bfloat16 overflow to infinity; both fp8 types saturate to their
// largest finite value, infinity included, as CUDA's __NV_SATFINITE does.
#pragma once

#include <cstdint>

#include "base/types.h"

// A kernel file that is compiled for one instruction set defines this before its first include. GCC lowers vector
// operations before it inlines, so the helpers must carry the attribute too, not only the kernels that call them.
#ifndef THESEUS_TARGET
#define THESEUS_TARGET
#endif
#define THESEUS_LANES_INLINE THESEUS_TARGET inline __attribute__((always_inline))

namespace theseus {

struct ScalarLanes {
  using Float = float;
  using Bits = uint32_t;
  using Signed = int32_t;
};

// The same bytes as another type of the same size, for scalars and vectors.
template <class To, class From>
THESEUS_LANES_INLINE To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  __builtin_memcpy(&result, &value, sizeof(result));
  return result;
}

inline constexpr uint32_t kFloatSign = 0x80000000u;
inline constexpr uint32_t kFloatInfinity = 0x7f800000u;
inline constexpr uint32_t kFloatNan = 0x7fc00000u;
inline constexpr uint64_t kDoubleNan = 0x7ff8000000000000u;

// A sign, an exponent and kMantissaBits, biased by kBias. Magnitudes are codes without the sign:
// from kSpecial on they are infinity or NaN; kLargest is the one that too large a number becomes.
template <class CodeType, int kMantissaBits, int kBias, uint32_t kLargest, uint32_t kSpecial, uint32_t kNan>
struct SmallFloat {
  using Code = CodeType;
  static constexpr uint32_t kNanCode = kNan;
  // The largest magnitude that is a number (infinity counts as one).
  static constexpr uint32_t kLargestNumber =
      kLargest > kSpecial ? kLargest : (kSpecial == kNan ? kSpecial - 1 : kSpecial);

  // Codes arrive and leave in 32-bit lanes, the upper bits zero.
  template <class Lanes>
  THESEUS_LANES_INLINE static typename Lanes::Float decode(typename Lanes::Bits code) {
    using Float = typename Lanes::Float;
    using Bits = typename Lanes::Bits;
    using Signed = typename Lanes::Signed;
    const Bits sign = (code & kSign) << (32 - kCodeBits);
    const Bits magnitude = code & (kSign - 1);
    const Bits shifted = magnitude << kShift;
    const Bits normal = shifted + kRebias;
    const Bits subnormal = bits_as<Bits>(bits_as<Float>(magnitude + kMagicBits) - bits_as<float>(kMagicBits));
    const Bits special = shifted | kFloatInfinity;
    const Signed order = bits_as<Signed>(magnitude);
    const Bits number = order < static_cast<int32_t>(1 << kMantissaBits) ? subnormal : normal;
    const Bits result = order >= static_cast<int32_t>(kSpecial) ? special : number;
    return bits_as<Float>(result | sign);
  }

  template <class Lanes>
  THESEUS_LANES_INLINE static typename Lanes::Bits encode(typename Lanes::Float value) {
    using Float = typename Lanes::Float;
    using Bits = typename Lanes::Bits;
    using Signed = typename Lanes::Signed;
    const Bits bits = bits_as<Bits>(value);
    const Bits magnitude = bits & ~kFloatSign;
    const Bits sign = (bits & kFloatSign) >> (32 - kCodeBits);
    const Bits rounded = magnitude + ((1u << (kShift - 1)) - 1) + ((magnitude >> kShift) & 1u);
    const Bits normal = (rounded >> kShift) - (kRebias >> kShift);
    // Adding the magic number makes the FPU round at the place of the smallest subnormal.
    const Bits subnormal = bits_as<Bits>(bits_as<Float>(magnitude) + bits_as<float>(kMagicBits)) - kMagicBits;
    const Signed order = bits_as<Signed>(magnitude);
    const Bits largest = Bits{} + kLargest;
    const Bits finite = bits_as<Signed>(normal) > static_cast<int32_t>(kLargest) ? largest : normal;
    const Bits number = (order < static_cast<int32_t>(kSmallestNormal) ? subnormal : finite) | sign;
    const Bits nan = Bits{} + kNan;
    return order > static_cast<int32_t>(kFloatInfinity) ? nan : number;
  }

  // The nearest value of this type, still as a float: what a reduction of several steps holds between them.
  template <class Lanes>
  THESEUS_LANES_INLINE static typename Lanes::Float round(typename Lanes::Float value) {
    return decode<Lanes>(encode<Lanes>(value));
  }

 private:
  static constexpr int kCodeBits = 8 * sizeof(Code);
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr uint32_t kSign = 1u << (kCodeBits - 1);
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  static constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(128 - kBias) << 23;
  // The power of two whose last mantissa bit weighs as much as the smallest subnormal of this type.
  static constexpr uint32_t kMagicBits = static_cast<uint32_t>(127 + 23 + 1 - kBias - kMantissaBits) << 23;
};

using Half = SmallFloat<uint16_t, 10, 15, 0x7c00, 0x7c00, 0x7e00>;
using Float8E4M3 = SmallFloat<uint8_t, 3, 7, 0x7e, 0x7f, 0x7f>;
using Float8E5M2 = SmallFloat<uint8_t, 2, 15, 0x7b, 0x7c, 0x7e>;

// The upper half of a float.
struct Brain {
  using Code = uint16_t;
  static constexpr uint32_t kNanCode = 0x7fc0;
  static constexpr uint32_t kLargestNumber = 0x7f80;

  template <class Lanes>
  THESEUS_LANES_INLINE static typename Lanes::Float decode(typename Lanes::Bits code) {
    return bits_as<typename Lanes::Float>(code << 16);
  }

  template <class Lanes>
  THESEUS_LANES_INLINE static typename Lanes::Bits encode(typename Lanes::Float value) {
    using Bits = typename Lanes::Bits;
    const Bits bits = bits_as<Bits>(value);
    const Bits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const Bits nan = Bits{} + kNanCode;
    return value != value ? nan : rounded;
  }

  // The nearest value of this type, still as a float. Needs a value that is no NaN or whose lower half is zero, as any
  // operation on two decoded values gives: otherwise rounding could carry a NaN over into a number.
  template <class Lanes>
  THESEUS_LANES_INLINE static typename Lanes::Float round(typename Lanes::Float value) {
    using Bits = typename Lanes::Bits;
    const Bits bits = bits_as<Bits>(value);
    return bits_as<typename Lanes::Float>((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
  }

  // encode() << 16, without the shifts.
  template <class Lanes>
  THESEUS_LANES_INLINE static typename Lanes::Bits encode_upper(typename Lanes::Float value) {
    using Bits = typename Lanes::Bits;
    const Bits nan = Bits{} + (kNanCode << 16);
    return value != value ? nan : bits_as<Bits>(round<Lanes>(value));
  }
};

}  // namespace theseus
