// What one element of each reduction must be, computed the slow way in double: no code of the library is used.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/types.h"

namespace theseus::reference {

inline uint64_t read(DataType type, const void* at) {
  uint64_t code = 0;
  std::memcpy(&code, at, size_of(type));
  return code;
}

inline void write(DataType type, uint64_t code, void* at) { std::memcpy(at, &code, size_of(type)); }

// A floating format: value = mantissa * 2^exponent.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  uint64_t nan;       // the canonical one
  uint64_t overflow;  // what too large a number rounds to
  bool infinity;      // all exponent bits set means infinity or NaN (else only all bits set is NaN)
};

inline Format format_of(DataType type) {
  switch (type) {
    case DataType::Float16: return {5, 10, 0x7e00, 0x7c00, true};
    case DataType::Bfloat16: return {8, 7, 0x7fc0, 0x7f80, true};
    case DataType::Float8e4m3: return {4, 3, 0x7f, 0x7e, false};
    case DataType::Float8e5m2: return {5, 2, 0x7e, 0x7b, true};
    case DataType::Float32: return {8, 23, 0x7fc00000, 0x7f800000, true};
    default: return {11, 52, 0x7ff8000000000000, 0x7ff0000000000000, true};
  }
}

inline double decode(DataType type, uint64_t code) {
  const Format f = format_of(type);
  const int bits = 1 + f.exponent_bits + f.mantissa_bits;
  const uint64_t mantissa = code & ((uint64_t{1} << f.mantissa_bits) - 1);
  const int exponent = static_cast<int>(code >> f.mantissa_bits & ((1u << f.exponent_bits) - 1));
  const int top = (1 << f.exponent_bits) - 1;
  const int bias = top / 2;
  const double sign = code >> (bits - 1) & 1 ? -1.0 : 1.0;
  if (f.infinity && exponent == top) {
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (!f.infinity && (code & ((uint64_t{1} << (bits - 1)) - 1)) == f.nan) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<double>(mantissa), 1 - bias - f.mantissa_bits);
  const double whole = static_cast<double>(mantissa | uint64_t{1} << f.mantissa_bits);
  return sign * std::ldexp(whole, exponent - bias - f.mantissa_bits);
}

// Nearest, ties to even, by searching the place of the last bit and rounding there.
inline uint64_t encode(DataType type, double value) {
  const Format f = format_of(type);
  if (std::isnan(value)) return f.nan;
  if (type == DataType::Float64) {
    uint64_t code;
    std::memcpy(&code, &value, sizeof(code));
    return code;
  }
  const int bits = 1 + f.exponent_bits + f.mantissa_bits;
  const int bias = ((1 << f.exponent_bits) - 1) / 2;
  const uint64_t sign = std::signbit(value) ? uint64_t{1} << (bits - 1) : 0;
  const double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) return sign | f.overflow;
  if (magnitude == 0) return sign;
  int exponent = std::max(std::ilogb(magnitude), 1 - bias);
  uint64_t whole = static_cast<uint64_t>(std::nearbyint(std::ldexp(magnitude, f.mantissa_bits - exponent)));
  if (whole >> (f.mantissa_bits + 1)) {
    whole >>= 1;
    ++exponent;
  }
  const bool normal = whole >> f.mantissa_bits & 1;
  const uint64_t fraction = whole & ((uint64_t{1} << f.mantissa_bits) - 1);
  const uint64_t code = (normal ? static_cast<uint64_t>(exponent + bias) << f.mantissa_bits : 0) | fraction;
  return sign | (code > f.overflow ? f.overflow : code);
}

inline bool is_nan(DataType type, uint64_t code) { return std::isnan(decode(type, code)); }

inline uint64_t reduce_floating(DataType type, RedOp op, uint64_t left, uint64_t right) {
  const double a = decode(type, left), b = decode(type, right);
  if (op == RedOp::Max || op == RedOp::Min) {
    if (std::isnan(a) && std::isnan(b)) return format_of(type).nan;
    if (std::isnan(a)) return right;
    if (std::isnan(b)) return left;
    const bool left_less = a < b || (a == b && std::signbit(a) && !std::signbit(b));
    return (op == RedOp::Min) == left_less ? left : right;
  }
  if (type == DataType::Float64) return encode(type, op == RedOp::Sum ? a + b : a * b);
  // Narrower types: in float, then rounded to the type.
  const float x = static_cast<float>(a), y = static_cast<float>(b);
  return encode(type, op == RedOp::Sum ? x + y : x * y);
}

template <class T>
uint64_t reduce_integer(RedOp op, uint64_t left, uint64_t right) {
  const T a = static_cast<T>(left), b = static_cast<T>(right);
  if (op == RedOp::Max) return static_cast<uint64_t>(a > b ? a : b);
  if (op == RedOp::Min) return static_cast<uint64_t>(a < b ? a : b);
  return op == RedOp::Sum ? left + right : left * right;
}

// One element of `type` in the low bytes of each operand and of the result; the rest of the result is zero.
inline uint64_t reduce(DataType type, RedOp op, uint64_t left, uint64_t right) {
  const uint64_t mask = size_of(type) == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * size_of(type))) - 1;
  switch (type) {
    case DataType::Int8: return reduce_integer<int8_t>(op, left, right) & mask;
    case DataType::Uint8: return reduce_integer<uint8_t>(op, left, right) & mask;
    case DataType::Int32: return reduce_integer<int32_t>(op, left, right) & mask;
    case DataType::Uint32: return reduce_integer<uint32_t>(op, left, right) & mask;
    case DataType::Int64: return reduce_integer<int64_t>(op, left, right);
    case DataType::Uint64: return reduce_integer<uint64_t>(op, left, right);
    default: return reduce_floating(type, op, left, right);
  }
}

// The codes most likely to be got wrong: zeros, the ends of every range, infinities, several NaNs, ties of rounding.
inline std::vector<uint64_t> special_codes(DataType type) {
  const int bits = 8 * static_cast<int>(size_of(type));
  const uint64_t top = uint64_t{1} << (bits - 1);
  std::vector<uint64_t> magnitudes = {0, 1, 2, 3, top - 1, top - 2, top / 2, top / 3};
  if (is_floating(type)) {
    const Format f = format_of(type);
    const uint64_t one = uint64_t{1} << f.mantissa_bits;
    const uint64_t unit = static_cast<uint64_t>(((1 << f.exponent_bits) - 1) / 2) << f.mantissa_bits;
    for (uint64_t code : {one - 1, one, one + 1, unit, unit + 1, unit - 1, unit + one / 2, unit + one, f.overflow - 1,
                          f.overflow, f.overflow + 1, f.nan, f.nan - 1}) {
      magnitudes.push_back(code & (top - 1));
    }
  }
  std::vector<uint64_t> codes = magnitudes;
  for (uint64_t magnitude : magnitudes) codes.push_back(magnitude | top);
  return codes;
}

// Codes for tests: special ones and random bits, half of them of similar size so that sums round.
class CodeSource {
 public:
  explicit CodeSource(DataType type, uint32_t seed = 1) : type_(type), special_(special_codes(type)), random_(seed) {}

  uint64_t next() {
    const uint64_t bits = random_();
    const int size = 8 * static_cast<int>(size_of(type_));
    const uint64_t mask = size == 64 ? ~uint64_t{0} : (uint64_t{1} << size) - 1;
    if (bits % 4 == 0) return special_[(bits >> 8) % special_.size()];
    const uint64_t code = random_() & mask;
    if (bits % 4 != 1 || !is_floating(type_)) return code;
    const Format f = format_of(type_);
    const uint64_t near_one = static_cast<uint64_t>(((1 << f.exponent_bits) - 1) / 2) << f.mantissa_bits;
    return near_one + (code & ((uint64_t{4} << f.mantissa_bits) - 1));
  }

  std::vector<char> array(size_t count) {
    std::vector<char> bytes(count * size_of(type_));
    for (size_t i = 0; i < count; ++i) write(type_, next(), bytes.data() + i * size_of(type_));
    return bytes;
  }

 private:
  DataType type_;
  std::vector<uint64_t> special_;
  std::mt19937_64 random_;
};

}  // namespace theseus::reference
