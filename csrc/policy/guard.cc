#include "policy/guard.h"

#include <algorithm>
#include <cmath>

namespace theseus::policy {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// b op a, written as a op b.
Op turned(Op op) {
  switch (op) {
    case Op::Less: return Op::Greater;
    case Op::LessEqual: return Op::GreaterEqual;
    case Op::Greater: return Op::Less;
    case Op::GreaterEqual: return Op::LessEqual;
    default: return op;
  }
}

bool narrow(Range& range, Op op, double value) {
  switch (op) {
    case Op::Less: range.high = std::min(range.high, std::nextafter(value, -kInfinity)); return true;
    case Op::LessEqual: range.high = std::min(range.high, value); return true;
    case Op::Greater: range.low = std::max(range.low, std::nextafter(value, kInfinity)); return true;
    case Op::GreaterEqual: range.low = std::max(range.low, value); return true;
    case Op::Equal:
      range.low = std::max(range.low, value);
      range.high = std::min(range.high, value);
      return true;
    default: return false;
  }
}

bool narrow(uint32_t& names, Op op, double value) {
  const uint32_t bit = 1u << static_cast<uint32_t>(value);
  if (op == Op::Equal) names &= bit;
  if (op == Op::NotEqual) names &= ~bit;
  return op == Op::Equal || op == Op::NotEqual;
}

// False: the comparison is none of a field and a constant, or none that guards can say.
bool absorb(Guards& guards, const Code& code, const Instruction& comparison) {
  const Instruction& a = code.instructions[comparison.a];
  const Instruction& b = code.instructions[comparison.b];
  const bool is_turned = a.op == Op::Constant;
  const Instruction& field = is_turned ? b : a;
  const Instruction& constant = is_turned ? a : b;
  if (field.op != Op::Field || constant.op != Op::Constant) return false;
  const Op op = is_turned ? turned(comparison.op) : comparison.op;
  const auto which = static_cast<Field>(field.id());
  switch (which) {
    case Field::Bytes: return narrow(guards.bytes, op, constant.constant());
    case Field::DType: return narrow(guards.dtypes, op, constant.constant());
    case Field::Op: return narrow(guards.ops, op, constant.constant());
    case Field::Collective: return false;
    default: break;
  }
  Range range{which};
  if (!narrow(range, op, constant.constant())) return false;
  guards.others.push_back(range);
  return true;
}

}  // namespace

Guards take_guards(Code& code) {
  Guards guards;
  bool has_taken = false;
  std::vector<uint16_t> conditions = {static_cast<uint16_t>(code.instructions.size() - 1)};
  while (!conditions.empty()) {
    const uint16_t index = conditions.back();
    conditions.pop_back();
    Instruction& instruction = code.instructions[index];
    switch (instruction.op) {
      case Op::And:
      case Op::Both: conditions.push_back(instruction.b); [[fallthrough]];
      case Op::Truth: conditions.push_back(instruction.a); break;
      case Op::Constant: guards.is_never |= instruction.constant() == 0; break;
      default:
        if (!is_comparison(instruction.op) || !absorb(guards, code, instruction)) break;
        instruction = make_constant(1, instruction.column);
        has_taken = true;
    }
  }
  const auto is_empty = [](const Range& range) { return range.low > range.high; };
  guards.is_never |= is_empty(guards.bytes) || std::any_of(guards.others.begin(), guards.others.end(), is_empty);
  if (has_taken) code = fold(code, {});
  return guards;
}

}  // namespace theseus::policy
