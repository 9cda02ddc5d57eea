// Avg as callers compose it: integers sum, then divide; floating types scale by the reciprocal, then sum.
#include <gtest/gtest.h>

#include "device/reduce.h"
#include "reference.h"

namespace theseus {
namespace {

template <class T>
std::vector<T> divided(DataType type, std::vector<T> values, int ranks) {
  divide_in_place(type, values.data(), values.size(), ranks);
  return values;
}

// The average of one value per rank, each given and returned as a double.
double floating_average(DataType type, const std::vector<double>& values) {
  uint64_t factor = 0;
  reciprocal(type, static_cast<int>(values.size()), &factor);
  std::vector<uint64_t> codes;
  for (double value : values) {
    codes.push_back(reference::encode(type, value));
    scale_kernel(type)(&codes.back(), &codes.back(), 1, &factor);
  }
  std::vector<const void*> sources;
  for (const uint64_t& code : codes) sources.push_back(&code);
  uint64_t out = 0;
  fold_kernel(type, RedOp::Sum)(&out, sources.data(), static_cast<int>(sources.size()), 1);
  return reference::decode(type, out);
}

TEST(Average, IntegerSumWrapsBeforeTheDivision) {
  int8_t sum = 0;
  const int8_t hundred = 100;
  reduce_kernel(DataType::Int8, RedOp::Sum)(&sum, &hundred, &hundred, 1);
  divide_in_place(DataType::Int8, &sum, 1, 2);
  EXPECT_EQ(sum, -28);
}

TEST(Average, IntegerDivisionTruncatesTowardZero) {
  EXPECT_EQ(divided<int8_t>(DataType::Int8, {-3, 3, -128, 127}, 2), (std::vector<int8_t>{-1, 1, -64, 63}));
  EXPECT_EQ(divided<int32_t>(DataType::Int32, {-3, 3, INT32_MIN, INT32_MAX}, 2),
            (std::vector<int32_t>{-1, 1, INT32_MIN / 2, INT32_MAX / 2}));
  EXPECT_EQ(divided<int64_t>(DataType::Int64, {-3, INT64_MIN, INT64_MAX}, 2),
            (std::vector<int64_t>{-1, INT64_MIN / 2, INT64_MAX / 2}));
  EXPECT_EQ(divided<uint8_t>(DataType::Uint8, {200, 255}, 2), (std::vector<uint8_t>{100, 127}));
  EXPECT_EQ(divided<uint32_t>(DataType::Uint32, {UINT32_MAX, 5}, 2), (std::vector<uint32_t>{UINT32_MAX / 2, 2}));
  EXPECT_EQ(divided<uint64_t>(DataType::Uint64, {UINT64_MAX, 5}, 2), (std::vector<uint64_t>{UINT64_MAX / 2, 2}));
}

// More ranks than the element type can count: the quotient of a small value is zero, not a division by ranks mod 256.
TEST(Average, MoreRanksThanTheTypeHolds) {
  EXPECT_EQ(divided<int8_t>(DataType::Int8, {127, -128}, 256), (std::vector<int8_t>{0, 0}));
  EXPECT_EQ(divided<uint8_t>(DataType::Uint8, {255}, 300), (std::vector<uint8_t>{0}));
}

// Every quotient of 32-bit integers is exact although it is computed in double.
TEST(Average, QuotientsAreExact) {
  std::mt19937_64 random(3);
  for (int ranks : {1, 3, 5, 7, 64, 1000, 65537, INT32_MAX}) {
    std::vector<int32_t> values;
    for (int i = 0; i < 3000; ++i) {
      const int64_t limit = INT32_MAX / ranks;
      const int64_t multiple = static_cast<int64_t>(random() % (2 * limit + 1)) - limit;
      const int64_t value = multiple * ranks + static_cast<int64_t>(random() % 3) - 1;
      values.push_back(static_cast<int32_t>(std::clamp<int64_t>(value, INT32_MIN, INT32_MAX)));
    }
    std::vector<uint32_t> unsigned_values(values.begin(), values.end());
    const std::vector<int32_t> quotients = divided(DataType::Int32, values, ranks);
    const std::vector<uint32_t> unsigned_quotients = divided(DataType::Uint32, unsigned_values, ranks);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(quotients[i], values[i] / ranks);
      ASSERT_EQ(unsigned_quotients[i], unsigned_values[i] / static_cast<uint32_t>(ranks));
    }
  }
}

TEST(Average, DivisionLeavesFloatingTypesAlone) {
  EXPECT_EQ(divided<float>(DataType::Float32, {6.0f}, 2), (std::vector<float>{6.0f}));
}

// Scaling first gives 57.0 in bfloat16 where summing first would give 56.75.
TEST(Average, Bfloat16ScalesBeforeItSums) {
  EXPECT_EQ(floating_average(DataType::Bfloat16, {19, 38, 57, 76, 95}), 57.0);
}

TEST(Average, Float16DoesNotOverflow) { EXPECT_EQ(floating_average(DataType::Float16, {60000, 60000}), 60000.0); }

TEST(Average, EveryFloatingTypeHalvesExactly) {
  for (DataType type : {DataType::Float16, DataType::Bfloat16, DataType::Float32, DataType::Float64,
                        DataType::Float8e4m3, DataType::Float8e5m2}) {
    EXPECT_EQ(floating_average(type, {1.0, 3.0}), 2.0) << name_of(type);
  }
}

TEST(Average, ReciprocalRoundsToTheType) {
  for (DataType type : {DataType::Float16, DataType::Bfloat16, DataType::Float32, DataType::Float64,
                        DataType::Float8e4m3, DataType::Float8e5m2}) {
    for (int ranks = 1; ranks <= 64; ++ranks) {
      uint64_t code = 0;
      reciprocal(type, ranks, &code);
      const double exact = 1.0 / ranks;
      const double value = type == DataType::Float64 ? exact : static_cast<float>(exact);
      EXPECT_EQ(code, reference::encode(type, value)) << name_of(type) << " 1/" << ranks;
    }
  }
  uint64_t untouched = 42;
  reciprocal(DataType::Int32, 2, &untouched);
  EXPECT_EQ(untouched, 42u);
}

}  // namespace
}  // namespace theseus
