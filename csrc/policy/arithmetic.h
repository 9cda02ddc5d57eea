// What each operation of the policy language does to numbers. No NaN goes in, and none comes out: it is a fault.
//
// fmod, floor and ceil are exact by IEEE 754, so every C library gives the same bits; nothing else of <cmath> is used.
#pragma once

#include <cmath>
#include <cstdint>

namespace theseus::policy {

enum class Fault : uint8_t { None, DivisionByZero, NotANumber, NotWhole, TooLarge, Index, Length };

inline constexpr double kWholeLimit = 9007199254740992.0;  // 2^53

inline bool is_whole(double x) { return x >= 0 && x < kWholeLimit && std::floor(x) == x; }
inline Fault checked(double result) { return result == result ? Fault::None : Fault::NotANumber; }

inline Fault add(double a, double b, double& r) { return checked(r = a + b); }
inline Fault subtract(double a, double b, double& r) { return checked(r = a - b); }
inline Fault multiply(double a, double b, double& r) { return checked(r = a * b); }
// Without a branch, so that compilers make vectors of it where lanes are divided.
inline Fault divide(double a, double b, double& r) {
  r = a / b;
  const bool is_by_zero = b == 0, is_nan = r != r;
  const Fault fault = is_by_zero ? Fault::DivisionByZero : Fault::NotANumber;
  return (is_by_zero | is_nan) ? fault : Fault::None;
}
// As Python's: the remainder has the sign of b, and a = b * (a // b) + a % b as far as doubles can say.
inline Fault modulo(double a, double b, double& r) {
  if (b == 0) return Fault::DivisionByZero;
  r = std::fmod(a, b);
  if (r == 0) {
    r = std::copysign(0.0, b);
  } else if ((b < 0) != (r < 0)) {
    r += b;
  }
  return checked(r);
}
inline Fault floor_divide(double a, double b, double& r) {
  if (b == 0) return Fault::DivisionByZero;
  const double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) {
    r = std::copysign(0.0, a / b);
  } else {
    r = std::floor(quotient);
    if (quotient - r > 0.5) r += 1;  // (a - rest) / b was rounded down past a whole number
  }
  return checked(r);
}

inline Fault bit_or(double a, double b, double& r) {
  if (!is_whole(a) || !is_whole(b)) return Fault::NotWhole;
  r = static_cast<double>(static_cast<uint64_t>(a) | static_cast<uint64_t>(b));
  return Fault::None;
}
inline Fault bit_xor(double a, double b, double& r) {
  if (!is_whole(a) || !is_whole(b)) return Fault::NotWhole;
  r = static_cast<double>(static_cast<uint64_t>(a) ^ static_cast<uint64_t>(b));
  return Fault::None;
}
inline Fault bit_and(double a, double b, double& r) {
  if (!is_whole(a) || !is_whole(b)) return Fault::NotWhole;
  r = static_cast<double>(static_cast<uint64_t>(a) & static_cast<uint64_t>(b));
  return Fault::None;
}
inline Fault shift_left(double a, double b, double& r) {
  if (!is_whole(a) || !is_whole(b)) return Fault::NotWhole;
  r = 0;
  if (a == 0) return Fault::None;
  if (b >= 53) return Fault::TooLarge;
  r = a * static_cast<double>(uint64_t{1} << static_cast<uint64_t>(b));
  return r < kWholeLimit ? Fault::None : Fault::TooLarge;
}
inline Fault shift_right(double a, double b, double& r) {
  if (!is_whole(a) || !is_whole(b)) return Fault::NotWhole;
  r = b >= 53 ? 0.0 : static_cast<double>(static_cast<uint64_t>(a) >> static_cast<uint64_t>(b));
  return Fault::None;
}

inline Fault truth_value(bool value, double& r) {
  r = value ? 1.0 : 0.0;
  return Fault::None;
}
inline Fault less(double a, double b, double& r) { return truth_value(a < b, r); }
inline Fault less_equal(double a, double b, double& r) { return truth_value(a <= b, r); }
inline Fault greater(double a, double b, double& r) { return truth_value(a > b, r); }
inline Fault greater_equal(double a, double b, double& r) { return truth_value(a >= b, r); }
inline Fault equal(double a, double b, double& r) { return truth_value(a == b, r); }
inline Fault not_equal(double a, double b, double& r) { return truth_value(a != b, r); }
inline Fault both(double a, double b, double& r) { return truth_value(a != 0 && b != 0, r); }
inline Fault least(double a, double b, double& r) {
  r = b < a ? b : a;
  return Fault::None;
}
inline Fault greatest(double a, double b, double& r) {
  r = b > a ? b : a;
  return Fault::None;
}

inline Fault negate(double a, double& r) {
  r = -a;
  return Fault::None;
}
inline Fault round_down(double a, double& r) {
  r = std::floor(a);
  return Fault::None;
}
inline Fault round_up(double a, double& r) {
  r = std::ceil(a);
  return Fault::None;
}
inline Fault magnitude(double a, double& r) {
  r = std::fabs(a);
  return Fault::None;
}

}  // namespace theseus::policy
