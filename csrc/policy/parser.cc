// Recursive descent down to `not`, precedence climbing below. Recursion is bounded by kDeepestPolicy.
#include "policy/parser.h"

#include <algorithm>
#include <array>

#include "policy/lexer.h"

namespace theseus::policy {

namespace {

struct Infix {
  std::string_view symbol;
  int precedence;
  Op op;
};
// Those of arithmetic and bits; comparisons chain and so stand apart.
constexpr Infix kInfix[] = {
    {"|", 1, Op::BitOr},       {"^", 2, Op::BitXor},       {"&", 3, Op::BitAnd},   {"<<", 4, Op::ShiftLeft},
    {">>", 4, Op::ShiftRight}, {"+", 5, Op::Add},          {"-", 5, Op::Subtract}, {"*", 6, Op::Multiply},
    {"/", 6, Op::Divide},      {"//", 6, Op::FloorDivide}, {"%", 6, Op::Modulo},
};
constexpr std::pair<std::string_view, Op> kComparisons[] = {
    {"<", Op::Less},          {"<=", Op::LessEqual}, {">", Op::Greater},
    {">=", Op::GreaterEqual}, {"==", Op::Equal},     {"!=", Op::NotEqual},
};

struct Function {
  std::string_view name;
  Op op;       // of one argument
  Op of_more;  // folded over several; Constant: takes one only
};
constexpr Function kFunctions[] = {
    {"min", Op::Min, Op::Least},      {"max", Op::Max, Op::Greatest},     {"sum", Op::Sum, Op::Constant},
    {"len", Op::Len, Op::Constant},   {"abs", Op::Abs, Op::Constant},     {"any", Op::Any, Op::Constant},
    {"all", Op::All, Op::Constant},   {"count", Op::Count, Op::Constant}, {"floor", Op::Floor, Op::Constant},
    {"ceil", Op::Ceil, Op::Constant},
};

// An instruction that stands for a part of the text.
struct Operand {
  uint16_t index = 0;
  uint16_t column = 1;
  Kind kind = Kind::Number;
  std::string_view text;  // of a single word
};

class Parser {
 public:
  explicit Parser(std::string_view text) : lexer_(text) {}

  Result<Parsed> run() {
    THESEUS_TRY(advance());
    if (token_.kind == TokenKind::End) return fault_at(token_.column, "the policy is empty");
    Operand result;
    THESEUS_TRY(conditional(result));
    THESEUS_TRY(need_number(result));
    if (token_.kind != TokenKind::End) return unexpected("an operator or the end");
    return std::move(parsed_);
  }

 private:
  struct Nesting {
    explicit Nesting(int& depth) : depth(++depth) {}
    ~Nesting() { --depth; }
    int& depth;
  };

  std::vector<Instruction>& instructions() { return parsed_.code.instructions; }
  uint16_t size() { return static_cast<uint16_t>(instructions().size()); }

  Status advance() {
    auto next = lexer_.next();
    THESEUS_TRY(next.status());
    token_ = *next;
    return {};
  }
  Status unexpected(const std::string& expected) const {
    return fault_at(token_.column, "expected " + expected + ", found " + quoted(token_));
  }
  Status check_depth() const {
    if (depth_ <= kDeepestPolicy) return {};
    return fault_at(token_.column, "more than " + std::to_string(kDeepestPolicy) + " levels inside each other");
  }

  Status add(const Instruction& instruction, Operand& result) {
    if (instructions().size() >= kMostInstructions) {
      return fault_at(instruction.column,
                      "the policy has more than " + std::to_string(kMostInstructions) + " operations");
    }
    result = {size(), instruction.column, Kind::Number, {}};
    instructions().push_back(instruction);
    return {};
  }
  Status add(Op op, uint16_t column, uint16_t a, uint16_t b, Operand& result) {
    return add({op, Op::Constant, column, a, b, 0}, result);
  }

  // Names of collectives, dtypes and ops are no numbers.
  Status need_number(const Operand& operand) const {
    if (operand.kind == Kind::Number) return {};
    const std::string name = operand.text.empty() ? "this" : std::string(operand.text);
    return fault_at(operand.column, name + " is " + describe(operand.kind) +
                                        ", not a number; it goes with == and != only, as in collective == allreduce");
  }
  Status check_comparable(const Operand& a, const Operand& b, Op op) const {
    if (a.kind == Kind::Number && b.kind == Kind::Number) return {};
    if (a.kind == b.kind) return op == Op::Equal || op == Op::NotEqual ? Status() : need_number(a);
    const Operand& named = a.kind != Kind::Number ? a : b;
    const Operand& other = a.kind != Kind::Number ? b : a;
    const std::string name = other.text.empty() ? "this" : std::string(other.text);
    return fault_at(other.column, name + " is not " + describe(named.kind) + "; those are " + names_of(named.kind));
  }

  Status conditional(Operand& result);
  Status disjunction(Operand& result) { return logical(result, "or", Op::OrBranch, Op::Or); }
  Status conjunction(Operand& result) { return logical(result, "and", Op::AndBranch, Op::And); }
  Status logical(Operand& result, std::string_view word, Op branch, Op join);
  Status negation(Operand& result);
  Status comparison(Operand& result);
  Status infix(Operand& result, int lowest);
  Status prefix(Operand& result);
  Status postfix(Operand& result);
  Status primary(Operand& result);
  Status name(Operand& result);
  Status call(const Token& function, Operand& result);
  Status attribute(const Token& name, Operand& result);
  void move_condition_first(uint16_t begin, uint16_t middle);

  Lexer lexer_;
  Token token_;
  int depth_ = 0;
  Parsed parsed_;
};

// The text says x, c; the code does c, IfBranch, x. Nothing outside names what moves yet.
void Parser::move_condition_first(uint16_t begin, uint16_t middle) {
  std::vector<Instruction>& code = instructions();
  const uint16_t branch = static_cast<uint16_t>(size() - 1);  // stands behind the condition and moves with it
  const auto then_by = static_cast<uint16_t>(branch + 1 - middle), condition_by = static_cast<uint16_t>(middle - begin);
  for (uint16_t i = begin; i <= branch; ++i) {
    change_references(code[i], [&](uint16_t other) {
      return static_cast<uint16_t>(other < middle ? other + then_by : other - condition_by);
    });
  }
  std::rotate(code.begin() + begin, code.begin() + middle, code.end());
}

Status Parser::conditional(Operand& result) {
  const Nesting nesting(depth_);
  THESEUS_TRY(check_depth());
  const uint16_t begin = size();
  Operand chosen, condition, other, unused;
  THESEUS_TRY(disjunction(chosen));
  result = chosen;
  if (!token_.is("if")) return {};
  const uint16_t column = token_.column;
  THESEUS_TRY(need_number(chosen));
  THESEUS_TRY(advance());
  const uint16_t middle = size();
  THESEUS_TRY(disjunction(condition));
  THESEUS_TRY(need_number(condition));
  if (!token_.is("else")) return unexpected("'else'");
  THESEUS_TRY(advance());

  THESEUS_TRY(add(Op::IfBranch, column, condition.index, 0, unused));
  move_condition_first(begin, middle);
  const auto branch = static_cast<uint16_t>(begin + (size() - 1 - middle));
  condition.index = static_cast<uint16_t>(condition.index - (middle - begin));
  chosen.index = static_cast<uint16_t>(chosen.index + (size() - middle));
  Operand jump;
  THESEUS_TRY(add(Op::Jump, column, chosen.index, 0, jump));
  THESEUS_TRY(conditional(other));
  THESEUS_TRY(need_number(other));
  THESEUS_TRY(add(Op::If, column, condition.index, chosen.index, result));
  instructions()[result.index].payload = other.index;
  instructions()[branch].b = jump.index;
  instructions()[branch].payload = result.index;
  instructions()[jump.index].payload = result.index;
  return {};
}

Status Parser::logical(Operand& result, std::string_view word, Op branch, Op join) {
  const bool is_or = join == Op::Or;
  THESEUS_TRY(is_or ? conjunction(result) : negation(result));
  while (token_.is(word)) {
    THESEUS_TRY(need_number(result));
    const uint16_t column = token_.column;
    THESEUS_TRY(advance());
    Operand fork, right;
    const Operand left = result;
    THESEUS_TRY(add(branch, column, left.index, 0, fork));
    THESEUS_TRY(is_or ? conjunction(right) : negation(right));
    THESEUS_TRY(need_number(right));
    THESEUS_TRY(add(join, column, left.index, right.index, result));
    instructions()[fork.index].payload = result.index;
  }
  return {};
}

Status Parser::negation(Operand& result) {
  if (!token_.is("not")) return comparison(result);
  const Nesting nesting(depth_);
  THESEUS_TRY(check_depth());
  const uint16_t column = token_.column;
  THESEUS_TRY(advance());
  Operand operand;
  THESEUS_TRY(negation(operand));
  THESEUS_TRY(need_number(operand));
  return add(Op::Not, column, operand.index, 0, result);
}

Status Parser::comparison(Operand& result) {
  THESEUS_TRY(infix(result, 1));
  Operand left = result;
  bool is_first = true;
  while (token_.kind == TokenKind::Symbol) {
    const auto* found = std::find_if(std::begin(kComparisons), std::end(kComparisons),
                                     [this](const auto& each) { return each.first == token_.text; });
    if (found == std::end(kComparisons)) break;
    const uint16_t column = token_.column;
    THESEUS_TRY(advance());
    Operand right, compared;
    THESEUS_TRY(infix(right, 1));
    THESEUS_TRY(check_comparable(left, right, found->second));
    THESEUS_TRY(add(found->second, column, left.index, right.index, compared));
    if (is_first) {
      result = compared;
    } else {
      THESEUS_TRY(add(Op::Both, column, result.index, compared.index, result));
    }
    left = right;
    is_first = false;
  }
  return {};
}

Status Parser::infix(Operand& result, int lowest) {
  THESEUS_TRY(prefix(result));
  while (token_.kind == TokenKind::Symbol) {
    const auto* found = std::find_if(std::begin(kInfix), std::end(kInfix),
                                     [this](const Infix& each) { return each.symbol == token_.text; });
    if (found == std::end(kInfix) || found->precedence < lowest) break;
    const uint16_t column = token_.column;
    THESEUS_TRY(need_number(result));
    THESEUS_TRY(advance());
    Operand right;
    THESEUS_TRY(infix(right, found->precedence + 1));
    THESEUS_TRY(need_number(right));
    THESEUS_TRY(add(found->op, column, result.index, right.index, result));
  }
  return {};
}

Status Parser::prefix(Operand& result) {
  if (!token_.is("-") && !token_.is("+")) return postfix(result);
  const Nesting nesting(depth_);
  THESEUS_TRY(check_depth());
  const Token sign = token_;
  THESEUS_TRY(advance());
  THESEUS_TRY(prefix(result));
  THESEUS_TRY(need_number(result));
  return sign.text == "-" ? add(Op::Negate, sign.column, result.index, 0, result) : Status();
}

Status Parser::postfix(Operand& result) {
  THESEUS_TRY(primary(result));
  while (token_.is("[")) {
    const uint16_t column = token_.column;
    THESEUS_TRY(need_number(result));
    THESEUS_TRY(advance());
    Operand index;
    THESEUS_TRY(conditional(index));
    THESEUS_TRY(need_number(index));
    if (!token_.is("]")) return unexpected("']'");
    THESEUS_TRY(advance());
    THESEUS_TRY(add(Op::Index, column, result.index, index.index, result));
  }
  return {};
}

Status Parser::primary(Operand& result) {
  const Token token = token_;
  switch (token.kind) {
    case TokenKind::Number: THESEUS_TRY(advance()); return add(make_constant(token.value, token.column), result);
    case TokenKind::Quoted: THESEUS_TRY(advance()); return attribute(token, result);
    case TokenKind::Name: return name(result);
    default: break;
  }
  if (token.is("not")) return fault_at(token.column, "'not' needs parentheses here: (not x)");
  if (!token.is("(")) return unexpected("a number, a name or '('");
  THESEUS_TRY(advance());
  THESEUS_TRY(conditional(result));
  if (!token_.is(")")) return unexpected("an operator or ')'");
  return advance();
}

Status Parser::name(Operand& result) {
  const Token token = token_;
  THESEUS_TRY(advance());
  if (token_.is("(")) return call(token, result);
  const auto word = find_word(token.text);
  if (!word) {
    for (const Function& each : kFunctions) {
      if (each.name == token.text) {
        return fault_at(token.column, std::string(token.text) + " is a function: " + std::string(token.text) + "(...)");
      }
    }
    return attribute(token, result);
  }
  if (word->role == Word::Role::Field) {
    THESEUS_TRY(add({Op::Field, Op::Constant, token.column, 0, 0, static_cast<uint64_t>(word->field)}, result));
  } else {
    THESEUS_TRY(add(make_constant(word->value, token.column), result));
  }
  result.kind = word->kind;
  result.text = token.text;
  return {};
}

Status Parser::attribute(const Token& name, Operand& result) {
  auto found = std::find(parsed_.names.begin(), parsed_.names.end(), name.text);
  if (found == parsed_.names.end()) found = parsed_.names.insert(found, std::string(name.text));
  const auto index = static_cast<uint64_t>(found - parsed_.names.begin());
  THESEUS_TRY(add({Op::Attribute, Op::Constant, name.column, 0, 0, index}, result));
  result.text = name.text;
  return {};
}

Status Parser::call(const Token& function, Operand& result) {
  const auto* found = std::find_if(std::begin(kFunctions), std::end(kFunctions),
                                   [&](const Function& each) { return each.name == function.text; });
  if (found == std::end(kFunctions)) {
    return fault_at(function.column, "there is no function '" + std::string(function.text) +
                                         "'; there are min, max, sum, len, abs, any, all, count, floor and ceil");
  }
  THESEUS_TRY(advance());
  int arguments = 0;
  do {
    if (arguments > 0) THESEUS_TRY(advance());
    Operand argument;
    THESEUS_TRY(conditional(argument));
    THESEUS_TRY(need_number(argument));
    if (arguments == 0) {
      result = argument;
    } else if (found->of_more == Op::Constant) {
      return fault_at(argument.column, std::string(found->name) + " takes one argument");
    } else {
      THESEUS_TRY(add(found->of_more, function.column, result.index, argument.index, result));
    }
    ++arguments;
  } while (token_.is(","));
  if (!token_.is(")")) return unexpected(found->of_more == Op::Constant ? "')'" : "',' or ')'");
  THESEUS_TRY(advance());
  if (arguments > 1) return {};
  return add(found->op, function.column, result.index, 0, result);
}

}  // namespace

Result<Parsed> parse(std::string_view text) {
  if (text.size() > kLongestPolicy) {
    return Status::argument("policy: " + std::to_string(text.size()) + " bytes, at most " +
                            std::to_string(kLongestPolicy) + " are allowed");
  }
  return Parser(text).run();
}

}  // namespace theseus::policy
