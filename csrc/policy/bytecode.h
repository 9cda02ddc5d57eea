// A policy as a list of instructions, each of which names earlier ones as its operands and has a result of its own.
//
// Control only goes forward, so a list of n instructions ends after at most n steps:
//     a and b    a.. AndBranch(a) b.. And(a, b)               AndBranch: where a is false, the And is 0; on behind it
//     a or b     a.. OrBranch(a)  b.. Or(a, b)
//     x if c else y    c.. IfBranch(c) x.. Jump(x) y.. If(c, x, y)    IfBranch: where c is false, on behind the Jump
// The result of the last instruction is the policy's.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/result.h"
#include "policy/arithmetic.h"
#include "policy/names.h"

namespace theseus::policy {

inline constexpr size_t kMostInstructions = 1024;
// Elements that all instructions of a policy together may visit, each once.
inline constexpr uint64_t kMostElements = 16 * uint64_t{kLongestArray};

// X(operation, its function in policy/arithmetic.h)
#define THESEUS_POLICY_UNARY(X) X(Negate, negate) X(Floor, round_down) X(Ceil, round_up) X(Abs, magnitude)
#define THESEUS_POLICY_BINARY(X) \
  X(Add, add)                    \
  X(Subtract, subtract)          \
  X(Multiply, multiply)          \
  X(Divide, divide)              \
  X(FloorDivide, floor_divide)   \
  X(Modulo, modulo)              \
  X(BitOr, bit_or)               \
  X(BitXor, bit_xor)             \
  X(BitAnd, bit_and)             \
  X(ShiftLeft, shift_left)       \
  X(ShiftRight, shift_right)     \
  X(Less, less)                  \
  X(LessEqual, less_equal)       \
  X(Greater, greater)            \
  X(GreaterEqual, greater_equal) \
  X(Equal, equal) X(NotEqual, not_equal) X(Both, both) X(Least, least) X(Greatest, greatest)

enum class Op : uint8_t {
#define THESEUS_POLICY_NAME(name, function) name,
  THESEUS_POLICY_UNARY(THESEUS_POLICY_NAME) THESEUS_POLICY_BINARY(THESEUS_POLICY_NAME)
#undef THESEUS_POLICY_NAME
  // Leaves: payload
  Constant,
  Field,
  Attribute,  // before it is typed: an index into the names; then: an attribute id, and its value is a number
  ArrayAttribute,
  // One operand, a number
  Not,
  Truth,  // 1 or 0
  Copy,
  // Reductions of one operand
  Min,
  Max,
  Sum,
  Any,
  All,
  Count,
  Len,
  // Two operands
  Index,        // a[b]
  NumberIndex,  // the same where a is a number: b must be 0
  // Arrays; what is done stands in `inner`
  Elementwise,
  Reduce,
  // Control: a, and end() names the And, Or or If that they belong to; IfBranch's b is the Jump
  AndBranch,
  OrBranch,
  IfBranch,
  Jump,
  And,  // a, b
  Or,   // a, b
  If,   // a (the condition), b, c()
};

struct Instruction {
  Op op = Op::Constant;
  Op inner = Op::Constant;
  uint16_t column = 1;
  uint16_t a = 0;
  uint16_t b = 0;
  uint64_t payload = 0;

  double constant() const { return std::bit_cast<double>(payload); }
  uint32_t id() const { return static_cast<uint32_t>(payload); }
  uint16_t c() const { return static_cast<uint16_t>(payload); }
  uint16_t end() const { return static_cast<uint16_t>(payload); }
};

struct Code {
  std::vector<Instruction> instructions;
  // By instruction; empty until it is typed.
  std::vector<uint32_t> lengths;  // of its result; 1: a number
  std::vector<uint32_t> places;   // of an array that it makes, in the arena; empty where none makes any
  uint32_t arena = 0;             // doubles

  bool is_constant() const { return instructions.size() == 1 && instructions[0].op == Op::Constant; }
};

inline Instruction make_constant(double value, uint16_t column) {
  return {Op::Constant, Op::Constant, column, 0, 0, std::bit_cast<uint64_t>(value)};
}
inline bool is_branch(Op op) { return op >= Op::AndBranch && op <= Op::Jump; }
inline bool is_join(Op op) { return op >= Op::And; }
inline bool is_comparison(Op op) { return op >= Op::Less && op <= Op::NotEqual; }
// 0 to 3 operands: a, b, c(). Elementwise and Reduce: of `inner`.
int operands_of(const Instruction& instruction);

// Applies `change` to everything in an instruction that names another.
template <class Change>
void change_references(Instruction& instruction, Change change) {
  const int operands = operands_of(instruction);
  if (operands >= 1) instruction.a = change(instruction.a);
  if (operands >= 2 || instruction.op == Op::IfBranch) instruction.b = change(instruction.b);
  if (operands >= 3 || is_branch(instruction.op)) instruction.payload = change(instruction.c());
}

// Finds the length of every result, chooses the array forms of operations and puts attribute ids in. `lengths` and
// `ids`: by index of the name. InvalidArgument: arrays that do not fit each other, or too much work; names the column.
Status assign_types(Code& code, const std::vector<uint32_t>& lengths, const std::vector<uint32_t>& ids);
// Places in the arena for lengths that stand.
void assign_places(Code& code);

// --- Running

struct Outcome {
  double value = 0;
  Fault fault = Fault::None;
  uint16_t column = 0;  // of the fault
};
const char* describe(Fault fault);

// A number, or an array that lies elsewhere.
union Slot {
  double number;
  const double* array;
};
Outcome run(const Code& code, const Fields& fields, AttributeValues& values);
// One instruction that is no branch and no join, all of whose operands stand in `slots`.
Fault run_one(const Code& code, size_t index, Slot* slots, const Fields& fields, AttributeValues& values,
              double* arena);

// --- Folding

// What is known beforehand.
struct Givens {
  AttributeValues* values = nullptr;
  const std::vector<bool>* fixed = nullptr;  // by attribute id
  std::vector<std::pair<Field, double>> fields;
};
// What `code` computes, with everything known computed: same results, same faults. Arrays stay as they are.
Code fold(const Code& code, const Givens& givens);

}  // namespace theseus::policy
