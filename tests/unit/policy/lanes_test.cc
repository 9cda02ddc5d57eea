// Policies run side by side give what each gives alone.
#include "policy/lanes.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "unit/policy/expression_fixture.h"

namespace theseus {
namespace {

using policy::fits_lanes;
using policy::key_of;
using policy::kLanes;
using policy::Lanes;

std::shared_ptr<const policy::Code> code_of(const std::string& text, const TestAttributes& attributes) {
  auto expression = Expression::parse(text);
  if (!expression.ok() || !expression->bind(attributes.attributes).ok()) {
    ADD_FAILURE() << text << ": " << expression.status().message();
    return nullptr;
  }
  return std::make_shared<const policy::Code>(*expression->code());
}

class LanesProperty : public testing::Test {
 protected:
  std::string one_of(const std::vector<std::string>& choices) { return choices[random_() % choices.size()]; }

  // A policy without control flow; each # stands for a constant.
  std::string grow(int depth) {
    if (depth == 0) return one_of({"#", "#", "#", "bytes", "root", "hosts", "x", "healing"});
    const std::string a = grow(depth - 1), b = grow(random_() % 2 ? depth - 1 : 0);
    if (random_() % 6 == 0) return "(not (" + a + "))";
    if (random_() % 4 == 0) return one_of({"-", "abs", "floor", "ceil", "any"}) + "(" + a + ")";
    if (random_() % 6 == 0) return one_of({"min(", "max("}) + a + ", " + b + ")";
    return "(" + a + one_of({"+", "-", "*", "/", "//", "%", "|", "^", "&", "<<", ">>", "<", "<=", ">", ">=", "=="}) +
           b + ")";
  }
  std::string with_constants(const std::string& text) {
    std::string result;
    for (const char c : text) {
      if (c == '#') {
        result += one_of({"0", "1", "2", "3", "52", "53", "0.5", "1e308", "1M", "7"});
      } else {
        result += c;
      }
    }
    return result;
  }
  std::mt19937_64 random_{5};
  TestAttributes attributes_ = example_attributes();
  policy::Fields fields_ = policy::fields_of(example_request());
};

TEST_F(LanesProperty, GiveWhatEachGivesAlone) {
  int numbers = 0, faults = 0;
  for (int round = 0; round < 4000; ++round) {
    const std::string text = grow(static_cast<int>(1 + random_() % 4));
    attributes_ = example_attributes();
    std::vector<std::shared_ptr<const policy::Code>> codes;
    for (size_t i = 1 + random_() % kLanes; i > 0; --i) codes.push_back(code_of(with_constants(text), attributes_));
    if (!fits_lanes(*codes[0])) continue;
    Lanes lanes(codes[0]);
    for (size_t i = 1; i < codes.size(); ++i) {
      const auto first = key_of(*codes[0]), other = key_of(*codes[i]);
      ASSERT_EQ(first.text.substr(0, first.shape_bytes), other.text.substr(0, other.shape_bytes)) << text;
      lanes.add(*codes[i]);
    }
    EXPECT_EQ(lanes.is_full(), codes.size() == kLanes);
    // Values as they are; then with a NaN, with none, and well again: nothing of a run is left in the next.
    const std::vector<double> good = attributes_.attributes[4].values;
    for (const std::vector<double>& x : {good, {std::numeric_limits<double>::quiet_NaN()}, {}, good}) {
      attributes_.attributes[4].values = x;
      fields_[static_cast<size_t>(policy::Field::Root)] = static_cast<double>(random_() % 4);
      lanes.run(fields_, attributes_);
      for (size_t i = 0; i < codes.size(); ++i) {
        const policy::Outcome alone = policy::run(*codes[i], fields_, attributes_);
        const bool is_number = alone.fault == policy::Fault::None;
        ASSERT_EQ(!std::isnan(lanes.value(i)), is_number) << text;
        if (is_number) {
          ASSERT_EQ(std::bit_cast<uint64_t>(lanes.value(i)), std::bit_cast<uint64_t>(alone.value)) << text;
        }
        ++(is_number ? numbers : faults);
      }
    }
  }
  EXPECT_GT(numbers, 30000);
  EXPECT_GT(faults, 10000);
}

TEST(Lanes, ShapesAreEqualWhereOnlyConstantsDiffer) {
  const TestAttributes attributes = example_attributes();
  const auto shape = [&](const std::string& text) {
    const auto key = key_of(*code_of(text, attributes));
    return key.text.substr(0, key.shape_bytes);
  };
  EXPECT_EQ(shape("2 + bytes / 7"), shape("3 + bytes / 1.5"));
  EXPECT_NE(key_of(*code_of("2 + bytes / 7", attributes)).text, key_of(*code_of("2 + bytes / 8", attributes)).text);
  EXPECT_EQ(key_of(*code_of("2 + bytes / 7", attributes)).text, key_of(*code_of("2+bytes/7", attributes)).text);
  EXPECT_NE(shape("2 + bytes / 7"), shape("2 + count / 7"));
  EXPECT_NE(shape("2 + bytes / 7"), shape("2 + 7 / bytes"));
  EXPECT_NE(shape("2 + x / 7"), shape("2 + healing / 7"));
}

// Where lanes could part, or a lane is no number.
TEST(Lanes, AreForNumbersWithoutControlFlow) {
  const TestAttributes attributes = example_attributes();
  for (const char* text : {"1 + bytes / 7", "not (x < 3)", "min(bytes, 3) << 2", "any(x)"}) {
    EXPECT_TRUE(fits_lanes(*code_of(text, attributes))) << text;
  }
  for (const char* text : {"x and 1 / root", "x or hosts", "1 if x else 2", "min(load) < 3", "load[1] + 2"}) {
    EXPECT_FALSE(fits_lanes(*code_of(text, attributes))) << text;
  }
  std::string longest = "1";
  for (int i = 0; i < 40; ++i) longest += " + bytes";
  EXPECT_FALSE(fits_lanes(*code_of(longest, attributes)));
}

}  // namespace
}  // namespace theseus
