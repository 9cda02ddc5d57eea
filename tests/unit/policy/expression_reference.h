// A second, plain reading of the policy language: random trees, how they are written, and what they give, computed by
// walking the tree. Shares nothing with csrc/policy.
#pragma once

#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "policy/expression.h"
#include "unit/policy/expression_fixture.h"

namespace theseus::reference {

struct Tree;
using TreePointer = std::unique_ptr<Tree>;
struct Tree {
  std::string word;  // operator, function, name or number
  enum class Form { Leaf, Prefix, Infix, Chain, Choice, Call, Index } form = Form::Leaf;
  std::vector<TreePointer> parts;
  std::vector<std::string> links;  // of a chain, between the parts
  std::vector<double> value;       // of a leaf
};
using Value = std::optional<std::vector<double>>;  // empty: it fails

// --- What a tree gives

inline std::optional<double> combine(const std::string& op, double a, double b) {
  const auto whole = [](double x) { return x >= 0 && x <= 9007199254740991.0 && x == std::floor(x); };
  const auto bits = [](double x) { return static_cast<unsigned long long>(x); };
  double r = 0;
  if (op == "+") r = a + b;
  if (op == "-") r = a - b;
  if (op == "*") r = a * b;
  if (op == "min") r = b < a ? b : a;
  if (op == "max") r = b > a ? b : a;
  if (op == "/" || op == "//" || op == "%") {
    if (b == 0) return std::nullopt;
    double rest = std::fmod(a, b), quotient = (a - rest) / b;
    if (rest != 0 && std::signbit(rest) != std::signbit(b)) {
      rest += b;
      quotient -= 1;
    }
    const double floored = std::floor(quotient) + (quotient - std::floor(quotient) > 0.5 ? 1 : 0);
    if (op == "/") r = a / b;
    if (op == "//") r = quotient == 0 ? std::copysign(0.0, a / b) : floored;
    if (op == "%") r = rest == 0 ? std::copysign(0.0, b) : rest;
  }
  if (op == "|" || op == "&" || op == "^" || op == "<<" || op == ">>") {
    if (!whole(a) || !whole(b)) return std::nullopt;
    if (op == "|") r = static_cast<double>(bits(a) | bits(b));
    if (op == "&") r = static_cast<double>(bits(a) & bits(b));
    if (op == "^") r = static_cast<double>(bits(a) ^ bits(b));
    if (op == ">>") r = std::fabs(std::floor(std::ldexp(a, -static_cast<int>(std::min(b, 2000.0)))));
    if (op == "<<") r = std::fabs(std::ldexp(a, static_cast<int>(std::min(b, 2000.0))));  // whole numbers have no -0
    if (r > 9007199254740991.0) return std::nullopt;
  }
  if (op == "<") r = a < b;
  if (op == "<=") r = a <= b;
  if (op == ">") r = a > b;
  if (op == ">=") r = a >= b;
  if (op == "==") r = a == b;
  if (op == "!=") r = a != b;
  if (std::isnan(r)) return std::nullopt;
  return r;
}

inline Value combine(const std::string& op, const Value& a, const Value& b) {
  if (!a || !b) return std::nullopt;
  std::vector<double> result;
  for (size_t i = 0; i < std::max(a->size(), b->size()); ++i) {
    const auto each = combine(op, (*a)[a->size() == 1 ? 0 : i], (*b)[b->size() == 1 ? 0 : i]);
    if (!each) return std::nullopt;
    result.push_back(*each);
  }
  return result;
}

inline Value evaluate(const Tree& tree);

inline Value evaluate_call(const Tree& tree) {
  Value value = evaluate(*tree.parts[0]);
  if (tree.parts.size() > 1) {
    for (size_t i = 1; i < tree.parts.size(); ++i) value = combine(tree.word, value, evaluate(*tree.parts[i]));
    return value;
  }
  if (!value) return value;
  const std::string& name = tree.word;
  if (name == "abs" || name == "floor" || name == "ceil") {
    for (double& each : *value) {
      each = name == "abs" ? std::fabs(each) : name == "floor" ? std::floor(each) : std::ceil(each);
    }
    return value;
  }
  double r = name == "all" ? 1 : name == "len" ? static_cast<double>(value->size()) : 0;
  if (name == "min" || name == "max") r = value->front();
  for (const double each : *value) {
    if (name == "min" && each < r) r = each;
    if (name == "max" && each > r) r = each;
    if (name == "sum") r += each;
    if (name == "count" && each != 0) r += 1;
    if (name == "any" && each != 0) r = 1;
    if (name == "all" && each == 0) r = 0;
  }
  if (std::isnan(r)) return std::nullopt;
  return std::vector<double>{r};
}

inline Value evaluate_chain(const Tree& tree) {
  Value result;
  Value left = evaluate(*tree.parts[0]);
  for (size_t i = 1; i < tree.parts.size(); ++i) {
    const Value right = evaluate(*tree.parts[i]);
    const Value link = combine(tree.links[i - 1], left, right);
    result = i == 1 ? link : combine("min", result, link);  // of zeros and ones
    if (!result) return result;
    left = right;
  }
  return result;
}

inline Value evaluate(const Tree& tree) {
  const auto truth = [](bool value) { return Value{{value ? 1.0 : 0.0}}; };
  switch (tree.form) {
    case Tree::Form::Leaf: return tree.value;
    case Tree::Form::Call: return evaluate_call(tree);
    case Tree::Form::Chain: return evaluate_chain(tree);
    case Tree::Form::Prefix: {
      Value value = evaluate(*tree.parts[0]);
      if (!value || tree.word == "+") return value;
      if (tree.word == "not ") return truth((*value)[0] == 0);
      for (double& each : *value) each = -each;
      return value;
    }
    case Tree::Form::Choice: {
      const Value condition = evaluate(*tree.parts[1]);
      if (!condition) return condition;
      return evaluate(*tree.parts[(*condition)[0] != 0 ? 0 : 2]);
    }
    case Tree::Form::Index: {
      const Value array = evaluate(*tree.parts[0]), at = evaluate(*tree.parts[1]);
      if (!array || !at) return std::nullopt;
      for (size_t i = 0; i < array->size(); ++i) {
        if ((*at)[0] == static_cast<double>(i)) return Value{{(*array)[i]}};
      }
      return std::nullopt;
    }
    case Tree::Form::Infix: {
      const Value left = evaluate(*tree.parts[0]);
      if (tree.word == "and" || tree.word == "or") {
        if (!left) return left;
        if (((*left)[0] != 0) == (tree.word == "or")) return truth(tree.word == "or");
        const Value right = evaluate(*tree.parts[1]);
        return right ? truth((*right)[0] != 0) : right;
      }
      return combine(tree.word, left, evaluate(*tree.parts[1]));
    }
  }
  return std::nullopt;
}

// --- How it is written

// How strongly a tree holds together: what has less needs parentheses.
inline int strength(const Tree& tree) {
  static const std::vector<std::vector<std::string>> levels = {
      {"or"}, {"and"}, {}, {}, {"|"}, {"^"}, {"&"}, {"<<", ">>"}, {"+", "-"}, {"*", "/", "//", "%"}};
  switch (tree.form) {
    case Tree::Form::Leaf: return tree.word[0] == '-' ? 11 : 13;
    case Tree::Form::Call:
    case Tree::Form::Index: return 13;
    case Tree::Form::Choice: return 0;
    case Tree::Form::Chain: return 4;
    case Tree::Form::Prefix: return tree.word == "not " ? 3 : 11;
    case Tree::Form::Infix: break;
  }
  for (size_t i = 0; i < levels.size(); ++i) {
    for (const std::string& op : levels[i]) {
      if (op == tree.word) return static_cast<int>(i) + 1;
    }
  }
  return 13;
}

class Writer {
 public:
  explicit Writer(std::mt19937_64& random) : random_(random) {}

  std::string write(const Tree& tree, int least = 0) {
    const int own = strength(tree);
    std::string text = plain(tree, own);
    if (own < least || random_() % 8 == 0) text = "(" + blank() + text + blank() + ")";
    return text;
  }

 private:
  std::string blank() { return random_() % 6 == 0 ? " " : ""; }

  std::string plain(const Tree& tree, int own) {
    const auto part = [&](size_t i, int least) { return write(*tree.parts[i], least); };
    switch (tree.form) {
      case Tree::Form::Leaf: return tree.word;
      case Tree::Form::Prefix: return tree.word + part(0, own);
      case Tree::Form::Infix: return part(0, own) + " " + tree.word + " " + part(1, own + 1);
      case Tree::Form::Choice: return part(0, 1) + " if " + part(1, 1) + " else " + part(2, 0);
      case Tree::Form::Index: return part(0, 12) + "[" + part(1, 0) + "]";
      default: break;
    }
    std::string text = tree.form == Tree::Form::Call ? tree.word + "(" : part(0, own + 1);
    for (size_t i = tree.form == Tree::Form::Call ? 0 : 1; i < tree.parts.size(); ++i) {
      if (tree.form == Tree::Form::Call) {
        text += (i > 0 ? "," + blank() : "") + part(i, 0);
      } else {
        text += blank() + tree.links[i - 1] + blank() + part(i, own + 1);
      }
    }
    return tree.form == Tree::Form::Call ? text + ")" : text;
  }

  std::mt19937_64& random_;
};

// --- Random trees. Their leaves are numbers, fields of example_request() and attributes of example_attributes().

class Grower {
 public:
  explicit Grower(std::mt19937_64& random) : random_(random) {}

  TreePointer number(int depth) {
    if (depth <= 0) return leaf();
    switch (random_() % 14) {
      case 0: return leaf();
      case 1: return tree(Tree::Form::Prefix, pick({"-", "not ", "+", "-"}), number(depth - 1));
      case 2: return tree(Tree::Form::Choice, "", number(depth - 1), number(depth - 1), number(depth - 1));
      case 3:
      case 4: return tree(Tree::Form::Infix, pick({"and", "or"}), number(depth - 1), number(depth - 1));
      case 5:
      case 6: return chain(depth, false);
      case 7: return call(depth, false);
      case 8: return tree(Tree::Form::Index, "", array(depth - 1), random_() % 2 ? small() : number(depth - 1));
      case 9:
      case 10:
        return tree(Tree::Form::Call, pick({"min", "max", "sum", "any", "all", "count", "len"}), array(depth - 1));
      default: return tree(Tree::Form::Infix, infix(), number(depth - 1), number(depth - 1));
    }
  }

 private:
  // Of four elements.
  TreePointer array(int depth) {
    if (depth <= 0) {
      return random_() % 2 ? named("nic_health", {1, 0.5, 0.25, 1}) : named("load", {10, 20, 30, 40});
    }
    switch (random_() % 7) {
      case 0: return array(0);
      case 1: return tree(Tree::Form::Prefix, pick({"-", "+"}), array(depth - 1));
      case 2: return tree(Tree::Form::Choice, "", array(depth - 1), number(depth - 1), array(depth - 1));
      case 3: return chain(depth, true);
      case 4: return call(depth, true);
      case 5: return tree(Tree::Form::Infix, infix(), number(depth - 1), array(depth - 1));
      default:
        return tree(Tree::Form::Infix, infix(), array(depth - 1), random_() % 2 ? number(depth - 1) : array(depth - 1));
    }
  }

  TreePointer chain(int depth, bool of_arrays) {
    TreePointer result = tree(Tree::Form::Chain, "");
    const size_t links = 1 + random_() % 3;
    for (size_t i = 0; i <= links; ++i) {
      result->parts.push_back(of_arrays && (i == 1 || random_() % 2) ? array(depth - 1) : number(depth - 1));
      if (i > 0) result->links.push_back(pick({"<", "<=", ">", ">=", "==", "!="}));
    }
    return result;
  }

  TreePointer call(int depth, bool of_arrays) {
    const auto part = [&] { return of_arrays ? array(depth - 1) : number(depth - 1); };
    if (random_() % 2) return tree(Tree::Form::Call, pick({"abs", "floor", "ceil"}), part());
    TreePointer result = tree(Tree::Form::Call, pick({"min", "max"}), part(), number(depth - 1));
    if (random_() % 2) result->parts.push_back(number(depth - 1));
    return result;
  }

  TreePointer leaf() {
    switch (random_() % 10) {
      case 0: return named("bytes", {1048576});
      case 1: return named("hosts", {4});
      case 2: return named("healing", {3});
      case 3: return named("x", {2.5});
      case 4: return named(random_() % 2 ? "op == sum" : "dtype == half", {});
      case 5: return named("0x1F", {31});
      case 6: return named("1.5K", {1536});
      default: return small();
    }
  }
  TreePointer small() {
    const auto value = static_cast<double>(random_() % 5);
    return named(std::to_string(static_cast<int>(value)), {value});
  }

  TreePointer named(const std::string& word, std::vector<double> value) {
    TreePointer result = tree(Tree::Form::Leaf, word);
    result->value = std::move(value);
    if (word == "op == sum") result->value = {1}, result->word = "(op == sum)";
    if (word == "dtype == half") result->value = {0}, result->word = "(dtype == half)";
    return result;
  }

  template <class... Parts>
  TreePointer tree(Tree::Form form, const std::string& word, Parts... parts) {
    auto result = std::make_unique<Tree>();
    result->form = form;
    result->word = word;
    (result->parts.push_back(std::move(parts)), ...);
    return result;
  }
  std::string infix() { return pick({"+", "-", "*", "/", "//", "%", "|", "^", "&", "<<", ">>", "+", "-", "*"}); }
  std::string pick(const std::vector<std::string>& words) { return words[random_() % words.size()]; }

  std::mt19937_64& random_;
};

}  // namespace theseus::reference
