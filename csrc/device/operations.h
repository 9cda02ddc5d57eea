// Operations: how a kernel reads, combines and writes one pack of elements (vectors.h says what to define first).
//   Stored  the pack in memory             Held  the pack while it is combined
//   enter(Stored) -> Held                  decode
//   step(Held, Held) -> Held               one operation, not yet rounded to the element type
//   round(Held) -> Held                    between two steps
//   leave(Held) -> Stored                  round, canonical NaN, encode
#pragma once

#include <type_traits>

#include "device/dtypes.h"
#include "device/vectors.h"

namespace theseus {
namespace {

// One register of floats from and to narrow codes.
template <class Format>
struct FormatCodec {
  using Stored = std::conditional_t<sizeof(typename Format::Code) == 1, Codes8, Codes16>;
  THESEUS_LANES_INLINE static Vector<float> decode(Stored codes) {
    return Format::template decode<VectorLanes>(widen(codes));
  }
  THESEUS_LANES_INLINE static Stored encode(Vector<float> value) {
    Stored codes;
    narrow(Format::template encode<VectorLanes>(value), codes);
    return codes;
  }
  THESEUS_LANES_INLINE static Vector<float> round(Vector<float> value) {
    return Format::template round<VectorLanes>(value);
  }
};

template <class Format>
struct Codec : FormatCodec<Format> {};

#if THESEUS_VECTOR_BYTES > 16

template <>
struct Codec<Half> {
  using Stored = Codes16;
  THESEUS_LANES_INLINE static Vector<float> decode(Stored codes) { return from_half(codes); }
  THESEUS_LANES_INLINE static Stored encode(Vector<float> value) {
    const Vector<float> nan = bits_as<Vector<float>>(VectorLanes::Bits{} + kFloatNan);
    return to_half(value == value ? value : nan);
  }
  THESEUS_LANES_INLINE static Vector<float> round(Vector<float> value) { return from_half(to_half(value)); }
};

// Both fp8 types are cheap to decode by way of fp16, which holds all their values: e5m2 is its upper half.
template <>
struct Codec<Float8E5M2> : FormatCodec<Float8E5M2> {
  THESEUS_LANES_INLINE static Vector<float> decode(Stored codes) { return from_half(spread(codes) << 8); }
};

// The exponents' biases differ by 8.
template <>
struct Codec<Float8E4M3> : FormatCodec<Float8E4M3> {
  THESEUS_LANES_INLINE static Vector<float> decode(Stored codes) {
    const Codes16 wide = spread(codes);
    const Codes16 magnitude = wide & 0x7f;
    const Codes16 nan = Codes16{} + static_cast<uint16_t>(Half::kNanCode);
    const Codes16 half = magnitude == 0x7f ? nan : magnitude << 7;
    return from_half(half | (wide & 0x80) << 8) * 256.0f;
  }
};

#endif

template <RedOp kOp, class Held>
THESEUS_LANES_INLINE Held add_or_multiply(Held left, Held right) {
  if constexpr (kOp == RedOp::Sum) return left + right;
  if constexpr (kOp == RedOp::Prod) return left * right;
}

template <RedOp kOp, class Held>
THESEUS_LANES_INLINE Held larger_or_smaller(Held left, Held right) {
  if constexpr (kOp == RedOp::Max) return left > right ? left : right;
  if constexpr (kOp == RedOp::Min) return left < right ? left : right;
}

template <class T>
THESEUS_LANES_INLINE Vector<T> with_canonical_nan(Vector<T> pack) {
  if constexpr (std::is_same_v<T, float>) {
    return pack == pack ? pack : bits_as<Vector<T>>(Vector<uint32_t>{} + kFloatNan);
  } else if constexpr (std::is_same_v<T, double>) {
    return pack == pack ? pack : bits_as<Vector<T>>(Vector<uint64_t>{} + kDoubleNan);
  } else {
    return pack;
  }
}

// Sum and Prod of unsigned integers, float and double. Signed integers use the unsigned ones: the bits are the same and
// wrapping is defined.
template <class T, RedOp kOp>
struct NativeArithmetic {
  using Element = T;
  using Stored = Vector<T>;
  using Held = Stored;
  THESEUS_LANES_INLINE static Held enter(Stored pack) { return pack; }
  THESEUS_LANES_INLINE static Held step(Held left, Held right) { return add_or_multiply<kOp>(left, right); }
  THESEUS_LANES_INLINE static Held round(Held pack) { return pack; }
  THESEUS_LANES_INLINE static Stored leave(Held pack) { return with_canonical_nan<T>(pack); }
};

// Sum and Prod of fp16 and fp8, in float.
template <class Format, RedOp kOp>
struct NarrowArithmetic {
  using Element = typename Format::Code;
  using Stored = typename Codec<Format>::Stored;
  using Held = Vector<float>;
  THESEUS_LANES_INLINE static Held enter(Stored pack) { return Codec<Format>::decode(pack); }
  THESEUS_LANES_INLINE static Held step(Held left, Held right) { return add_or_multiply<kOp>(left, right); }
  THESEUS_LANES_INLINE static Held round(Held pack) { return Codec<Format>::round(pack); }
  THESEUS_LANES_INLINE static Stored leave(Held pack) { return Codec<Format>::encode(pack); }
};

// Sum and Prod of bfloat16. Each 32-bit lane holds two elements, which are floats after a shift or a mask: nothing
// needs to be spread over wider registers and packed again.
template <RedOp kOp>
struct BrainArithmetic {
  using Element = Brain::Code;
  using Stored = Vector<Element>;
  using Bits = VectorLanes::Bits;
  struct Held {
    Vector<float> low, high;
  };
  THESEUS_LANES_INLINE static Held enter(Stored pack) {
    const Bits bits = bits_as<Bits>(pack);
    return {bits_as<Vector<float>>(bits << 16), bits_as<Vector<float>>(bits & 0xffff0000u)};
  }
  THESEUS_LANES_INLINE static Held step(Held left, Held right) {
    return {add_or_multiply<kOp>(left.low, right.low), add_or_multiply<kOp>(left.high, right.high)};
  }
  THESEUS_LANES_INLINE static Held round(Held pack) {
    return {Brain::round<VectorLanes>(pack.low), Brain::round<VectorLanes>(pack.high)};
  }
  THESEUS_LANES_INLINE static Stored leave(Held pack) {
    return bits_as<Stored>(Brain::encode<VectorLanes>(pack.low) | Brain::encode_upper<VectorLanes>(pack.high));
  }
};

// Max and Min of integers.
template <class T, RedOp kOp>
struct IntegerOrder {
  using Element = T;
  using Stored = Vector<T>;
  using Held = Stored;
  THESEUS_LANES_INLINE static Held enter(Stored pack) { return pack; }
  THESEUS_LANES_INLINE static Held step(Held left, Held right) { return larger_or_smaller<kOp>(left, right); }
  THESEUS_LANES_INLINE static Held round(Held pack) { return pack; }
  THESEUS_LANES_INLINE static Stored leave(Held pack) { return pack; }
};

// Max and Min of float and double.
template <class T, RedOp kOp>
struct NativeFloatOrder {
  using Element = T;
  using Stored = Vector<T>;
  using Held = Stored;
  using Bits = Vector<std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
  THESEUS_LANES_INLINE static Held enter(Stored pack) { return pack; }
  THESEUS_LANES_INLINE static Held step(Held left, Held right) {
    // Comparison picks `right` when either is NaN; equal operands differ at most in the sign of zero.
    const Held picked = larger_or_smaller<kOp>(left, right);
    const Held number = right == right ? picked : left;
    const Bits a = bits_as<Bits>(left), b = bits_as<Bits>(right);
    const Held equal = bits_as<Held>(kOp == RedOp::Max ? (a & b) : (a | b));
    return left == right ? equal : number;
  }
  THESEUS_LANES_INLINE static Held round(Held pack) { return pack; }
  THESEUS_LANES_INLINE static Stored leave(Held pack) { return with_canonical_nan<T>(pack); }
};

// Max and Min of narrow floating types, as signed integers that sort like the numbers: negative codes have all bits but
// the sign flipped. NaN becomes the integer that always loses, which no number maps to.
template <class T, uint32_t kLargestNumber, uint32_t kNanCode, RedOp kOp>
struct FloatOrder {
  using Element = T;
  using Stored = Vector<T>;
  using Held = Stored;
  static constexpr int kSignShift = 8 * sizeof(T) - 1;
  static constexpr T kMagnitude = static_cast<T>((1u << kSignShift) - 1);
  static constexpr T kLoser = kOp == RedOp::Max ? static_cast<T>(~kMagnitude) : kMagnitude;

  THESEUS_LANES_INLINE static Held enter(Stored pack) {
    const Held key = flip(pack);
    const Held loser = Held{} + kLoser;
    return (pack & kMagnitude) > static_cast<T>(kLargestNumber) ? loser : key;
  }
  THESEUS_LANES_INLINE static Held step(Held left, Held right) { return larger_or_smaller<kOp>(left, right); }
  THESEUS_LANES_INLINE static Held round(Held pack) { return pack; }
  THESEUS_LANES_INLINE static Stored leave(Held key) {
    const Held nan = Held{} + static_cast<T>(kNanCode);
    return key == kLoser ? nan : flip(key);
  }

 private:
  THESEUS_LANES_INLINE static Held flip(Held pack) { return pack ^ ((pack < T{0}) & kMagnitude); }
};

}  // namespace
}  // namespace theseus
