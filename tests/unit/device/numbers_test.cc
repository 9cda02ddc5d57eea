// Elements and reductions of device code against the host's kernels: every bit.
#include "device/numbers.cuh"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "device/packs.cuh"
#include "device/reduce.h"

namespace theseus {
namespace {

using device::Numbers;
using device::Reduction;
using device::Type;

// Operands where rounding, signs, infinities and NaNs meet: all codes of 8 bits; of wider types the edges of each
// format, and any bits at all.
template <class Code>
std::vector<Code> operands(DataType type) {
  std::vector<Code> codes;
  if (sizeof(Code) == 1) {
    for (int code = 0; code < 256; ++code) codes.push_back(static_cast<Code>(code));
    return codes;
  }
  constexpr int kBits = 8 * sizeof(Code);
  for (int shift = 0; shift < kBits; ++shift) {
    for (int nearby = -1; nearby <= 1; ++nearby) {
      const auto code = static_cast<Code>((Code{1} << shift) + static_cast<Code>(nearby));
      codes.push_back(code);
      codes.push_back(static_cast<Code>(~code));
    }
  }
  std::mt19937_64 random(static_cast<uint64_t>(type) + 1);
  for (int i = 0; i < 200; ++i) codes.push_back(static_cast<Code>(random()));
  // Numbers near each other, whose sums and differences are subnormal, exact ties, or zero.
  for (int i = 0; i < 100; ++i) codes.push_back(static_cast<Code>(codes[codes.size() - 100] ^ (random() & 7)));
  return codes;
}

template <Type type, Reduction reduction>
void compare() {
  using Of = Numbers<type, reduction>;
  using Code = typename Of::Code;
  const auto host_type = static_cast<DataType>(type);
  const auto op = static_cast<RedOp>(reduction);
  ASSERT_EQ(sizeof(Code), size_of(host_type));
  const std::vector<Code> codes = operands<Code>(host_type);
  std::vector<Code> left, right;
  for (const Code a : codes) {
    left.insert(left.end(), codes.size(), a);
    right.insert(right.end(), codes.begin(), codes.end());
  }
  std::vector<Code> host(left.size());
  reduce_kernel(host_type, op)(host.data(), left.data(), right.data(), left.size());
  for (size_t i = 0; i < left.size(); ++i) {
    ASSERT_EQ(uint64_t{Of::combine(left[i], right[i])}, uint64_t{host[i]})
        << name_of(host_type) << ' ' << name_of(op) << " of " << uint64_t{left[i]} << " and " << uint64_t{right[i]};
    // No kernel asks which operand is the left one.
    ASSERT_EQ(Of::combine(left[i], right[i]), Of::combine(right[i], left[i]));
  }
  for (size_t b = 0; b < codes.size(); ++b) {
    scale_kernel(host_type)(host.data(), codes.data(), codes.size(), &codes[b]);
    for (size_t a = 0; a < codes.size(); ++a) {
      ASSERT_EQ(uint64_t{Of::scale(codes[a], codes[b])}, uint64_t{host[a]}) << name_of(host_type) << " scaled";
    }
  }
}

// A chain of combinations is the host's fold: no step keeps more than the type holds.
template <Type type, Reduction reduction>
void compare_folds() {
  using Of = Numbers<type, reduction>;
  using Code = typename Of::Code;
  const auto host_type = static_cast<DataType>(type);
  std::mt19937_64 random(3);
  const std::vector<Code> codes = operands<Code>(host_type);
  constexpr size_t kLength = 300;
  std::vector<std::vector<Code>> sources(5, std::vector<Code>(kLength));
  std::vector<const void*> pointers;
  for (std::vector<Code>& source : sources) {
    for (Code& code : source) code = codes[random() % codes.size()];
    pointers.push_back(source.data());
  }
  std::vector<Code> host(kLength);
  fold_kernel(host_type, static_cast<RedOp>(reduction))(host.data(), pointers.data(), 5, kLength);
  for (size_t i = 0; i < kLength; ++i) {
    Code value = sources[0][i];
    for (size_t s = 1; s < sources.size(); ++s) value = Of::combine(value, sources[s][i]);
    ASSERT_EQ(uint64_t{value}, uint64_t{host[i]}) << name_of(host_type);
  }
}

// Packs hold the same elements as memory does.
template <Type type>
void compare_packs() {
  using Of = Numbers<type, Reduction::Sum>;
  using Code = typename Of::Code;
  constexpr int kElements = device::kVectorBytes / sizeof(Code);
  alignas(16) Code left[kElements], right[kElements], result[kElements];
  std::mt19937_64 random(4);
  for (int i = 0; i < kElements; ++i) left[i] = static_cast<Code>(random()), right[i] = static_cast<Code>(random());
  const auto bytes = [](Code* codes) { return reinterpret_cast<device::U8*>(codes); };
  constexpr int kCells = device::kCellsOf<Of, 4>;
  device::Vector held, next;
  const auto cursor = [&](Code* codes, int from, int to) {
    return device::cursor_at(bytes(codes + from), bytes(codes + to), sizeof(Code));
  };
  device::Cursor at = cursor(left, 0, kElements);
  device::load_vector(held, at);
  at = cursor(right, 0, kElements);
  device::load_vector(next, at);
  device::combine<Of, 0, 1>(held, next);
  device::combine<Of, 1, kCells>(held, next);
  at = cursor(result, 0, kElements);
  device::store_vector(held, at);
  for (int i = 0; i < kElements; ++i) ASSERT_EQ(result[i], Of::combine(left[i], right[i]));
  // One element after the other; the end stops stores, and sends loads back.
  device::Cursor from = cursor(left, 0, 1), to = cursor(result, 0, 1);
  for (int i = 0; i < 2; ++i) {
    device::load_element<sizeof(Code)>(held, from);
    device::scale<Of, 0, 1>(held, right[0]);
    device::store_element<sizeof(Code)>(held, to);
  }
  EXPECT_EQ(result[0], Of::scale(left[0], right[0]));
  EXPECT_EQ(result[1], Of::combine(left[1], right[1]));
  device::store_vector(held, to);
  EXPECT_EQ(result[1], Of::combine(left[1], right[1]));
}

template <Type type>
void compare_type() {
  compare<type, Reduction::Sum>();
  compare<type, Reduction::Prod>();
  compare<type, Reduction::Max>();
  compare<type, Reduction::Min>();
  compare_folds<type, Reduction::Sum>();
  compare_folds<type, Reduction::Prod>();
  compare_packs<type>();
}

TEST(DeviceNumbers, EqualTheHostsBitForBit) {
  compare_type<Type::Int8>();
  compare_type<Type::Uint8>();
  compare_type<Type::Int32>();
  compare_type<Type::Uint32>();
  compare_type<Type::Int64>();
  compare_type<Type::Uint64>();
  compare_type<Type::Float16>();
  compare_type<Type::Float32>();
  compare_type<Type::Float64>();
  compare_type<Type::Bfloat16>();
  compare_type<Type::Float8e4m3>();
  compare_type<Type::Float8e5m2>();
}

// Every fp16 and bfloat16 code comes back as it went, NaNs as the canonical one; and every float rounds as on the host,
// seen in products with one.
TEST(DeviceNumbers, ConvertEveryNarrowCode) {
  const auto check = [](auto format, DataType type, uint32_t one) {
    using Format = decltype(format);
    for (uint32_t code = 0; code < 65536; ++code) {
      const uint32_t magnitude = code & 0x7fff;
      const uint32_t expected = magnitude > Format::kLargestNumber ? Format::kNanCode : code;
      ASSERT_EQ(Format::encode(device::multiply(Format::decode(code), 0x3f800000)), expected) << code;
      uint16_t host = 0;
      const uint16_t left = static_cast<uint16_t>(code), right = static_cast<uint16_t>(one);
      reduce_kernel(type, RedOp::Prod)(&host, &left, &right, 1);
      ASSERT_EQ(host, expected) << code;
    }
  };
  check(device::Half(), DataType::Float16, 0x3c00);
  check(device::Brain(), DataType::Bfloat16, 0x3f80);
}

}  // namespace
}  // namespace theseus
