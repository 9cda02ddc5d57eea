// The policy language: what every part of it gives, what it refuses and how it says so.
#include "policy/expression.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "unit/policy/expression_fixture.h"

namespace theseus {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Result<double> evaluate(const std::string& text, const PolicyRequest& request = example_request()) {
  auto expression = Expression::parse(text);
  if (!expression.ok()) return expression.status();
  TestAttributes attributes = example_attributes();
  const Status bound = expression->bind(attributes.attributes);
  if (!bound.ok()) return bound;
  return expression->evaluate(request, attributes);
}

struct Case {
  const char* text;
  double result;
};

// Every row also says what the folded policy gives.
constexpr Case kCases[] = {
    // Numbers
    {"0", 0},
    {"7", 7},
    {"007", 7},
    {"1_000", 1000},
    {"1_0.5_0", 10.5},
    {".5", 0.5},
    {"5.", 5},
    {"1.5e3", 1500},
    {"1e-2", 0.01},
    {"1E+2", 100},
    {"0x10", 16},
    {"0XfF", 255},
    {"0x1_0", 16},
    {"2K", 2048},
    {"1.5M", 1572864},
    {"1G", 1073741824},
    {"0x10K", 16384},
    {"1e1K", 10240},
    {"9007199254740993", 9007199254740992.0},
    {"0x1fffffffffffff", 9007199254740991.0},
    {"1e308", 1e308},
    {"0.1", 0.1},
    {"true", 1},
    {"false", 0},
    {"4.9e-324", 4.9e-324},
    // Arithmetic
    {"1 + 2 * 3", 7},
    {"(1 + 2) * 3", 9},
    {"10 - 4 - 3", 3},
    {"2 - -3", 5},
    {"--3", 3},
    {"-+-3", 3},
    {"+5", 5},
    {"-2 * 3", -6},
    {"7 / 2", 3.5},
    {"8 / 2 / 2", 2},
    {"0.1 + 0.2", 0.1 + 0.2},
    {"1e308 * 10", kInfinity},
    {"-1e308 * 10", -kInfinity},
    {"1 / (1e308 * 10)", 0},
    {"7 // 2", 3},
    {"-7 // 2", -4},
    {"7 // -2", -4},
    {"-7 // -2", 3},
    {"7.5 // 2", 3},
    {"1 // 0.1", 9},
    {"7 % 3", 1},
    {"-7 % 3", 2},
    {"7 % -3", -2},
    {"-7 % -3", -1},
    {"7.5 % 2", 1.5},
    {"1 % 0.1", std::fmod(1, 0.1)},
    {"5 % (1e308 * 10)", 5},
    {"5 // (1e308 * 10)", 0},
    {"-5 // (1e308 * 10)", -1},
    {"-5 % (1e308 * 10)", kInfinity},
    {"0 // 3", 0},
    {"6 % 3", 0},
    {"10 % 3 * 2", 2},
    {"2 * 7 // 4", 3},
    // Bits
    {"6 | 1", 7},
    {"6 & 3", 2},
    {"6 ^ 3", 5},
    {"1 | 2 ^ 3 & 1", 3},
    {"1 << 20", 1048576},
    {"1 << 2 + 3", 32},
    {"1 << 52", 4503599627370496.0},
    {"0 << 1000", 0},
    {"1024 >> 3", 128},
    {"7 >> 1", 3},
    {"7 >> 1000", 0},
    {"9007199254740991 & 1", 1},
    {"8 >> 1 << 1", 8},
    {"1 << 3 | 1", 9},
    {"3 & 2 == 2", 1},
    {"0 * -1 | 0", 0},
    // Comparisons
    {"1 < 2", 1},
    {"2 < 1", 0},
    {"1 <= 1", 1},
    {"1 > 1", 0},
    {"2 >= 3", 0},
    {"1 == 1", 1},
    {"1 != 1", 0},
    {"1 < 2 < 3", 1},
    {"1 < 2 < 2", 0},
    {"3 > 2 > 1 > 0", 1},
    {"3 > 2 > 1 > 1", 0},
    {"1 < 3 > 2", 1},
    {"(1 < 2) < 2", 1},
    {"1 < (2 < 3)", 0},
    {"0 == -0", 1},
    {"1 + 1 == 2", 1},
    {"1 < 2 == 1", 0},
    {"2 == 2 == 2", 1},
    // Logic: 1 or 0, and what is not needed is not looked at
    {"1 and 2", 1},
    {"0 and 1", 0},
    {"3 or 0", 1},
    {"0 or 0", 0},
    {"not 0", 1},
    {"not 5", 0},
    {"not not 5", 1},
    {"1 or 0 and 0", 1},
    {"(1 or 0) and 0", 0},
    {"not 1 == 2", 1},
    {"not 0 and not 0", 1},
    {"0 and 1 / 0", 0},
    {"1 or 1 / 0", 1},
    {"0.5 and -1", 1},
    {"-0 or 0", 0},
    {"1 and 1 and 1 and 0", 0},
    {"0 or 0 or 0 or 1", 1},
    {"(1 and 2) + 1", 2},
    {"0 and 1 / 0 or 2", 1},
    // Choices
    {"1 if 1 else 2", 1},
    {"1 if 0 else 2", 2},
    {"1 if 1 else 1 / 0", 1},
    {"1 / 0 if 0 else 2", 2},
    {"1 if 0 else 2 if 0 else 3", 3},
    {"1 if 0 else 2 if 1 else 3", 2},
    {"(1 if 1 else 0) if 1 else 5", 1},
    {"1 + 1 if 1 and 1 else 7", 2},
    {"(1 if 0 else 2) + (3 if 1 else 4)", 5},
    {"1 if (0 if 1 else 1) else 9", 9},
    {"1 < 2 < 3 if 1 < 2 < 3 else 4 < 5 < 6", 1},
    {"(2 if x > 2 else 3) if (x < 3 and x > 2) else 4 if x else 5", 2},
    // Fields and names
    {"bytes", 1048576},
    {"count", 262144},
    {"root", 2},
    {"ranks", 16},
    {"hosts", 4},
    {"rails", 4},
    {"collective == allreduce", 1},
    {"collective == all_reduce", 1},
    {"collective != allreduce", 0},
    {"broadcast == collective", 0},
    {"dtype == float32", 1},
    {"dtype == float", 1},
    {"dtype == half", 0},
    {"op == sum", 1},
    {"op == max", 0},
    {"op != (min)", 1},
    {"allgather == all_gather", 1},
    {"bytes >= 1M and collective == allreduce and dtype != bfloat16", 1},
    {"bytes / count", 4},
    {"16 == ranks == hosts * rails", 1},
    {"op == sum and max(1, 2) == 2", 1},
    {"collective == collective", 1},
    // Attributes and arrays
    {"healing", 3},
    {"healing == 3 and bytes >= 64K", 1},
    {"min(nic_health)", 0.25},
    {"max(nic_health)", 1},
    {"sum(nic_health)", 2.75},
    {"len(nic_health)", 4},
    {"len(healing)", 1},
    {"nic_health[2]", 0.25},
    {"nic_health[root]", 0.25},
    {"nic_health[1 + 2]", 1},
    {"healing[0]", 3},
    {"min(healing)", 3},
    {"max(x)", 2.5},
    {"sum(healing)", 3},
    {"any(healing)", 1},
    {"all(healing)", 1},
    {"count(healing)", 1},
    {"count(0)", 0},
    {"count(nic_health < 0.6)", 2},
    {"count(nic_health)", 4},
    {"any(nic_health < 0.2)", 0},
    {"any(nic_health == 0.25)", 1},
    {"all(nic_health > 0.2)", 1},
    {"all(nic_health > 0.25)", 0},
    {"count(0.2 < nic_health < 1)", 2},
    {"count(0.4 < nic_health < 1)", 1},
    {"sum(load * nic_health)", 67.5},
    {"sum(load / 10)", 10},
    {"max(100 - load)", 90},
    {"min(-load)", -40},
    {"sum(abs(pair))", 15},
    {"sum(floor(nic_health))", 2},
    {"sum(ceil(nic_health))", 4},
    {"sum(pair // 2)", -1},
    {"sum(pair % 3)", 2},
    {"sum(min(load, 25))", 80},
    {"max(min(nic_health, 0.6))", 0.6},
    {"sum(max(load, 100 * nic_health))", 280},
    {"min(3, 1, 2)", 1},
    {"max(3, 1, 2)", 3},
    {"min(-x, x)", -2.5},
    {"abs(-3)", 3},
    {"floor(-2.5)", -3},
    {"ceil(-2.5)", -2},
    {"floor(x)", 2},
    {"ceil(x)", 3},
    {"(load if x > 2 else nic_health)[1]", 20},
    {"(load if x > 3 else nic_health)[1]", 0.5},
    {"(load + nic_health)[3]", 41},
    {"(load > 15)[0]", 0},
    {"sum(load >> 1)", 50},
    {"sum((load | 1) & 1)", 4},
    {"max(load) - min(load)", 30},
    {"`my-attr:a.b` + 1", 43},
    {"`sum` + sum(pair)", 10},
    {"`healing`", 3},
    {"len(load + 1)", 4},
    {"count(load == load)", 4},
    {"nic_health[0] if healing else 5", 1},
    // Blanks
    {" \t1\n+\r2 ", 3},
    {"min(\n  load\n)", 10},
};

TEST(Expression, GivesWhatTheLanguageSays) {
  for (const Case& each : kCases) {
    const auto result = evaluate(each.text);
    ASSERT_TRUE(result.ok()) << each.text << ": " << result.status().message();
    EXPECT_EQ(*result, each.result) << each.text;
  }
}

TEST(Expression, FoldedGivesTheSameBits) {
  const std::vector<bool> sets[] = {{}, std::vector<bool>(7, true), {true, false, true}, {false, true}};
  for (const Case& each : kCases) {
    auto expression = *Expression::parse(each.text);
    TestAttributes attributes = example_attributes();
    ASSERT_TRUE(expression.bind(attributes.attributes).ok());
    const auto plain = expression.evaluate(example_request(), attributes);
    for (const auto& fixed : sets) {
      const Expression folded = expression.folded(attributes, fixed);
      EXPECT_EQ(show(folded.evaluate(example_request(), attributes)), show(plain)) << each.text;
      const Expression twice = folded.folded(attributes, fixed);
      EXPECT_EQ(show(twice.evaluate(example_request(), attributes)), show(plain)) << each.text;
    }
  }
}

struct Refusal {
  const char* text;
  int column;  // 0: none is named
  const char* part;
};

constexpr Refusal kRefusals[] = {
    {"", 1, "empty"},
    {"  ", 3, "empty"},
    {"1 +", 4, "expected a number, a name or '('"},
    {"1 2", 3, "found '2'"},
    {"(1", 3, "')'"},
    {"1)", 2, "found ')'"},
    {"bytes > = 1", 9, "=="},
    {"a && b", 3, "'and'"},
    {"a || b", 3, "'or'"},
    {"!a", 1, "'not'"},
    {"a = 1", 3, "'=='"},
    {"2 ** 3", 3, "powers"},
    {"~1", 1, "'~'"},
    {"a ? 1 : 2", 3, "if condition else"},
    {"collective == \"allreduce\"", 15, "without quotes"},
    {"'x'", 1, "without quotes"},
    {"1 if 2", 7, "'else'"},
    {"1 if else 2", 6, "found 'else'"},
    {"if 1 else 2", 1, "found 'if'"},
    {"and 1", 1, "found 'and'"},
    {"1 and", 6, "found the end"},
    {"1 + not 2", 5, "parentheses"},
    {"10X", 3, "suffixes"},
    {"10KB", 4, "suffixes"},
    {"10k", 3, "suffixes"},
    {"1__0", 2, "suffixes"},
    {"1_", 2, "suffixes"},
    {"0x", 1, "digit"},
    {"0x_1", 1, "digit"},
    {"0x1_", 1, "digit"},
    {"0x20000000000000", 1, "2^53"},
    {"1e999", 1, "double"},
    {"1e-999", 1, "double"},
    {"1e308K", 1, "double"},
    {"1.2.3", 4, "suffixes"},
    {"1e", 2, "suffixes"},
    {"@", 1, "'@'"},
    {"1 + \x01", 5, "0x01"},
    {"\xc3\xa4", 1, "0xc3"},
    {"`ab", 1, "partner"},
    {"``", 1, "no name"},
    {"`a b`", 1, "no byte 0x20"},
    {"x[", 3, "found the end"},
    {"x[1", 4, "']'"},
    {"x[]", 3, "found ']'"},
    {"min()", 5, "found ')'"},
    {"min(1,)", 7, "found ')'"},
    {"sum(1, 2)", 8, "one argument"},
    {"len(1", 6, "')'"},
    {"sqrt(2)", 1, "no function"},
    {"bytes(1)", 1, "no function"},
    {"len + 1", 1, "function: len(...)"},
    {"1 < ", 5, "found the end"},
    {"collective == float32", 15, "float32 is not a collective; those are allreduce,"},
    {"collective == allredcue", 15, "allredcue is not a collective"},
    {"collective == 0", 15, "not a collective"},
    {"bytes == allreduce", 1, "bytes is not a collective"},
    {"dtype == sum", 10, "sum is not a dtype"},
    {"op == float32", 7, "float32 is not an op"},
    {"collective < broadcast", 1, "== and != only"},
    {"collective + 1", 1, "collective is a collective, not a number"},
    {"1 + dtype", 5, "a dtype"},
    {"collective", 1, "not a number"},
    {"not op", 5, "an op"},
    {"op and 1", 1, "an op"},
    {"1 or op", 6, "an op"},
    {"-float32", 2, "a dtype"},
    {"op if 1 else 2", 1, "an op"},
    {"1 if op else 2", 6, "an op"},
    {"1 if 1 else op", 13, "an op"},
    {"min(op)", 5, "an op"},
    {"x[op]", 3, "an op"},
    {"op[0]", 1, "an op"},
    {"op == sum == 1", 14, "not an op"},
    {"(sum)", 2, "an op"},
    {"a.b = 1", 5, "'=='"},
    // Found when attributes are looked up
    {"nothing > 1", 0, "no attribute 'nothing'"},
    {"nic_health", 1, "is an array (4 elements)"},
    {"nic_health < 0.5", 12, "is an array"},
    {"nic_health + pair", 12, "4 and 2 elements"},
    {"nic_health and 1", 12, "'and' takes a number"},
    {"1 and nic_health", 3, "'and' takes a number"},
    {"nic_health or 1", 12, "'or' takes a number"},
    {"1 or nic_health", 3, "'or' takes a number"},
    {"not nic_health", 1, "'not' takes a number"},
    {"1 if nic_health else 2", 3, "a condition takes a number"},
    {"(load if 1 else 2)[0]", 7, "4 elements and a number"},
    {"load[nic_health]", 5, "an index takes a number"},
    {"(load if 1 else pair)[0]", 7, "both must be alike"},
    // Found when it is evaluated
    {"1 / 0", 3, "division by zero"},
    {"1 // 0", 3, "division by zero"},
    {"1 % 0", 3, "division by zero"},
    {"1 / (hosts - 4)", 3, "division by zero"},
    {"1e308 * 10 - 1e308 * 10", 12, "not a number"},
    {"0 * (1e308 * 10)", 3, "not a number"},
    {"1e308 * 10 % 2", 12, "not a number"},
    {"1.5 | 1", 5, "whole numbers"},
    {"-1 & 1", 4, "whole numbers"},
    {"9007199254740992 | 0", 18, "whole numbers"},
    {"1 << 53", 3, "2^53"},
    {"3 << 52", 3, "2^53"},
    {"1 << -1", 3, "whole numbers"},
    {"1 >> 0.5", 3, "whole numbers"},
    {"1 << 1e300", 3, "whole numbers"},
    {"load[4]", 5, "index"},
    {"load[-1]", 5, "index"},
    {"load[0.5]", 5, "index"},
    {"healing[1]", 8, "index"},
    {"sum(1 / (load - 10))", 7, "division by zero"},
    {"len(1 / 0)", 7, "division by zero"},
    {"1 and 1 / 0", 9, "division by zero"},
    {"1 / 0 and 0", 3, "division by zero"},
    {"0 > 1 > 1 / 0", 11, "division by zero"},
    {"1 / 0 if 1 else 2", 3, "division by zero"},
};

TEST(Expression, RefusesWithTheColumn) {
  for (const Refusal& each : kRefusals) {
    const auto result = evaluate(each.text);
    ASSERT_FALSE(result.ok()) << each.text;
    EXPECT_EQ(result.status().code(), Code::InvalidArgument) << each.text;
    const std::string& message = result.status().message();
    EXPECT_NE(message.find(each.part), std::string::npos) << each.text << ": " << message;
    if (each.column > 0) {
      EXPECT_TRUE(message.starts_with("policy, column " + std::to_string(each.column) + ": "))
          << each.text << ": " << message;
    }
  }
}

// What fails stays as it is, with the same column, so that a branch not taken may hold it.
TEST(Expression, FoldedFailsAlike) {
  for (const Refusal& each : kRefusals) {
    auto expression = Expression::parse(each.text);
    if (!expression.ok()) continue;
    TestAttributes attributes = example_attributes();
    if (!expression->bind(attributes.attributes).ok()) continue;
    const Expression folded = expression->folded(attributes, std::vector<bool>(7, true));
    EXPECT_EQ(show(folded.evaluate(example_request(), attributes)), show(evaluate(each.text))) << each.text;
  }
}

TEST(Expression, KeepsItsBounds) {
  const auto nested = [](int depth, const std::string& open, const std::string& close) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += open;
    text += "1";
    for (int i = 0; i < depth; ++i) text += close;
    return text;
  };
  const std::pair<std::string, std::string> shapes[] = {
      {"(", ")"},      {"-", ""},   {"not ", ""},  {"min(", ")"}, {"1 if 1 else ", ""}, {"(1 if 1 else ", ")"},
      {"x[0 * ", "]"}, {"-(", ")"}, {"abs(-", ")"}};
  for (const auto& [open, close] : shapes) {
    EXPECT_TRUE(evaluate(nested(31, open, close)).ok()) << open;
    for (const int depth : {65, 300, 4000}) {
      const auto refused = evaluate(nested(depth, open, close));
      ASSERT_FALSE(refused.ok()) << open;
      EXPECT_TRUE(refused.status().message().find("levels inside each other") != std::string::npos ||
                  refused.status().message().find("bytes, at most 4096") != std::string::npos)
          << refused.status().message();
    }
  }
  EXPECT_EQ(*evaluate(nested(63, "(", ")")), 1);
  EXPECT_EQ(*evaluate(std::string(4095, ' ') + "1"), 1);
  EXPECT_FALSE(evaluate(std::string(4096, ' ') + "1").ok());

  std::string chain = "1";  // 512 numbers and 511 sums: one below the bound
  for (int i = 1; i < 512; ++i) chain += "+1";
  EXPECT_EQ(*evaluate(chain), 512);
  const auto refused = evaluate(chain + "+1");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("1024 operations"), std::string::npos) << refused.status().message();
  // Long chains do not nest.
  std::string either = "root == 0";
  for (int i = 1; i < 200; ++i) either += " or root == " + std::to_string(i);
  EXPECT_EQ(*evaluate(either), 1);
}

// Arrays bound the work of an evaluation before there is one.
TEST(Expression, RefusesTooMuchWork) {
  TestAttributes attributes;
  attributes.add("a", std::vector<double>(kLongestArray, 1.0));
  const auto bind = [&](const std::string& text) {
    auto expression = *Expression::parse(text);
    const Status status = expression.bind(attributes.attributes);
    return status.ok() ? show(expression.evaluate(example_request(), attributes)) : status.message();
  };
  EXPECT_EQ(bind("sum(a)"), show(65536.0));
  EXPECT_EQ(bind("sum(a + 1)"), show(131072.0));
  EXPECT_NE(bind("sum(a + 1 + 1)").find("in between"), std::string::npos);
  std::string many = "min(a)";
  for (int i = 0; i < 10; ++i) many += " + min(a)";
  EXPECT_NE(bind(many).find("visits more than"), std::string::npos) << bind(many);
}

TEST(Expression, NamesTheAttributesThatItReads) {
  const auto expression = *Expression::parse("b + a * bytes + b[`c-d`] + (1 if allreduce == collective else `sum`)");
  EXPECT_EQ(expression.attributes(), (std::vector<std::string>{"b", "a", "c-d", "sum"}));
  EXPECT_TRUE(expression.reads_attributes());
  EXPECT_FALSE(Expression::parse("bytes > 1")->reads_attributes());
}

TEST(Expression, FoldingLeavesOnlyWhatMoves) {
  TestAttributes attributes = example_attributes();
  const auto folded = [&](const std::string& text, const std::vector<bool>& fixed) {
    auto expression = *Expression::parse(text);
    EXPECT_TRUE(expression.bind(attributes.attributes).ok());
    return expression.folded(attributes, fixed);
  };
  const std::vector<bool> all(7, true);
  EXPECT_FALSE(folded("healing == 3 and min(nic_health) < bytes", all).reads_attributes());
  EXPECT_FALSE(folded("healing == 4 and x", {true}).reads_attributes());
  EXPECT_FALSE(folded("x if healing == 4 else 7", {true}).reads_attributes());
  EXPECT_TRUE(folded("healing == 3 and x", {true}).reads_attributes());
  EXPECT_TRUE(folded("nic_health[root] > 0.5", all).reads_attributes());

  const Expression constant = folded("sum(load) * healing", all);
  attributes.reads = 0;
  EXPECT_EQ(*constant.evaluate(example_request(), attributes), 300);
  EXPECT_EQ(attributes.reads, 0);
}

TEST(Expression, ValuesThatAreNoNumbersAreFaults) {
  for (const std::string text : {"x", "x > 1", "x != x", "sum(x)", "not x"}) {
    TestAttributes attributes;
    attributes.add("x", {std::nan("")});
    auto expression = *Expression::parse(text);
    ASSERT_TRUE(expression.bind(attributes.attributes).ok());
    EXPECT_FALSE(expression.evaluate(example_request(), attributes).ok()) << text;
  }
  TestAttributes attributes;
  attributes.add("x", {1, std::nan(""), 2});
  for (const std::string text : {"x[0]", "count(x > 1)", "min(x)"}) {
    auto expression = *Expression::parse(text);
    ASSERT_TRUE(expression.bind(attributes.attributes).ok());
    EXPECT_FALSE(expression.evaluate(example_request(), attributes).ok()) << text;
  }
  // A value that changed its length behind the definition's back is a fault, not a read outside.
  auto expression = *Expression::parse("x[2]");
  ASSERT_TRUE(expression.bind(attributes.attributes).ok());
  attributes.attributes[0].values = {1};
  EXPECT_FALSE(expression.evaluate(example_request(), attributes).ok());
}

TEST(Expression, LargeCountsAreRounded) {
  PolicyRequest request = example_request();
  request.bytes = (uint64_t{1} << 53) + 1;
  EXPECT_EQ(*evaluate("bytes == 9007199254740992", request), 1);
  EXPECT_FALSE(evaluate("bytes & 1", request).ok());
  request.bytes = ~uint64_t{0};
  EXPECT_EQ(*evaluate("bytes", request), 18446744073709551616.0);
}

TEST(Expression, NeedsItsAttributesLookedUp) {
  auto expression = *Expression::parse("healing");
  TestAttributes attributes = example_attributes();
  EXPECT_EQ(expression.evaluate(example_request(), attributes).status().code(), Code::InternalError);
  EXPECT_FALSE(expression.folded(attributes, {true}).evaluate(example_request(), attributes).ok());
}

}  // namespace
}  // namespace theseus
