// The policy language against a plain reading of it, and against nonsense.
#include <gtest/gtest.h>

#include <random>

#include "policy/expression.h"
#include "unit/policy/expression_fixture.h"
#include "unit/policy/expression_reference.h"

namespace theseus {
namespace {

// Written out and read again, a random policy gives what walking its tree gives, folded or not.
TEST(ExpressionProperty, GivesWhatATreeWalkGives) {
  std::mt19937_64 random(2026);
  TestAttributes attributes = example_attributes();
  const PolicyRequest request = example_request();
  int numbers = 0, faults = 0, refused = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto tree = reference::Grower(random).number(static_cast<int>(1 + random() % 5));
    const std::string text = reference::Writer(random).write(*tree);
    auto expression = Expression::parse(text);
    if (!expression.ok()) {
      const std::string& message = expression.status().message();  // large ones may pass a bound; nothing else may
      ASSERT_TRUE(message.find("at most") != std::string::npos || message.find("operations") != std::string::npos ||
                  message.find("levels") != std::string::npos)
          << text << "\n"
          << message;
      ++refused;
      continue;
    }
    ASSERT_TRUE(expression->bind(attributes.attributes).ok()) << text;
    const auto expected = reference::evaluate(*tree);
    const auto result = expression->evaluate(request, attributes);
    ASSERT_EQ(result.ok(), expected.has_value()) << text << "\n" << show(result);
    if (result.ok()) {
      ASSERT_EQ(std::bit_cast<uint64_t>(*result), std::bit_cast<uint64_t>((*expected)[0]))
          << text << "\n"
          << *result << " " << (*expected)[0];
    }
    ++(result.ok() ? numbers : faults);
    const std::vector<bool> fixed = {random() % 2 == 0, random() % 2 == 0, random() % 2 == 0, true, random() % 2 == 0};
    const Expression folded = expression->folded(attributes, fixed);
    ASSERT_EQ(show(folded.evaluate(request, attributes)), show(result)) << text;
    ASSERT_EQ(show(Expression::parse(text)->folded(attributes, fixed).evaluate(request, attributes)),
              show(Expression::parse(text)->evaluate(request, attributes)));
  }
  // The test looks at what it is meant to look at.
  EXPECT_GT(numbers, 6000);
  EXPECT_GT(faults, 600);
  EXPECT_LT(refused, 1000);
}

class ExpressionFuzz : public testing::Test {
 protected:
  // Nothing crashes, and what parses is total: the same twice, and folded. True where it parsed and was bound.
  bool survives(const std::string& text) {
    auto expression = Expression::parse(text);
    if (!expression.ok()) {
      EXPECT_EQ(expression.status().code(), Code::InvalidArgument);
      return false;
    }
    if (!expression->bind(attributes_.attributes).ok()) return false;
    const std::string first = show(expression->evaluate(request_, attributes_));
    EXPECT_EQ(show(expression->evaluate(request_, attributes_)), first) << text;
    for (const auto& fixed : {std::vector<bool>(7, true), std::vector<bool>{true, false, true}}) {
      EXPECT_EQ(show(expression->folded(attributes_, fixed).evaluate(request_, attributes_)), first) << text;
    }
    return true;
  }

  std::string soup(size_t words) {
    static const std::vector<std::string> vocabulary = {
        "if",   "else", "and",   "or",      "not",        "(",         ")",          "[",     "]",        ",",
        "+",    "-",    "*",     "/",       "//",         "%",         "|",          "^",     "&",        "<<",
        ">>",   "<",    "<=",    ">",       ">=",         "==",        "!=",         "1",     "0",        "2.5",
        "0x10", "1K",   "1e308", "bytes",   "root",       "hosts",     "op",         "dtype", "sum",      "max",
        "min",  "len",  "abs",   "any",     "all",        "count",     "floor",      "ceil",  "float",    "true",
        "x",    "load", "pair",  "healing", "nic_health", "allreduce", "collective", "`sum`", "broadcast"};
    std::string text;
    for (size_t i = 0; i < words; ++i) text += vocabulary[random_() % vocabulary.size()] + (random_() % 4 ? " " : "");
    return text;
  }

  std::mt19937_64 random_{7};
  TestAttributes attributes_ = example_attributes();
  PolicyRequest request_ = example_request();
};

TEST_F(ExpressionFuzz, RandomBytes) {
  for (int i = 0; i < 400000; ++i) {
    std::string text(random_() % 24, '\0');
    for (char& c : text) c = static_cast<char>(random_());
    survives(text);
  }
}

TEST_F(ExpressionFuzz, RandomWords) {
  int good = 0;
  for (int i = 0; i < 200000; ++i) good += survives(soup(1 + random_() % 9)) ? 1 : 0;
  EXPECT_GT(good, 5000);
}

TEST_F(ExpressionFuzz, LongRandomWords) {
  for (int i = 0; i < 3000; ++i) survives(soup(900));
}

TEST_F(ExpressionFuzz, GoodPoliciesWithFaults) {
  int good = 0;
  for (int i = 0; i < 100000; ++i) {
    const auto tree = reference::Grower(random_).number(static_cast<int>(1 + random_() % 4));
    std::string text = reference::Writer(random_).write(*tree);
    for (size_t changes = 1 + random_() % 3; changes > 0 && !text.empty(); --changes) {
      const size_t at = random_() % text.size();
      switch (random_() % 5) {
        case 0: text.erase(at, 1 + random_() % 3); break;
        case 1: text[at] = static_cast<char>(random_()); break;
        case 2: text.insert(at, soup(1)); break;
        case 3: text.insert(at, text.substr(random_() % text.size(), random_() % 12)); break;
        default: text.resize(at); break;
      }
    }
    good += survives(text) ? 1 : 0;
  }
  EXPECT_GT(good, 2000);
}

}  // namespace
}  // namespace theseus
