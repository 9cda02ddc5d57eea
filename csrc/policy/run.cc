// Evaluation of a typed policy: one pass over its instructions, forward only.
#include <cassert>
#include <memory>

#include "policy/bytecode.h"

namespace theseus::policy {

namespace {

Fault load_number(const Instruction& instruction, AttributeValues& values, double& result) {
  const std::span<const double> found = values.values(instruction.id());
  if (found.size() != 1) return Fault::Length;
  return checked(result = found[0]);
}

Fault load_array(const Instruction& instruction, uint32_t length, AttributeValues& values, const double*& result) {
  const std::span<const double> found = values.values(instruction.id());
  if (found.size() != length) return Fault::Length;
  bool is_sound = true;
  for (const double each : found) is_sound &= each == each;
  result = found.data();
  return is_sound ? Fault::None : Fault::NotANumber;
}

// Operands of an operation between arrays and numbers; a number is an array with step 0.
struct Elements {
  const double* first;
  size_t step;
  double operator[](size_t i) const { return first[i * step]; }
};

Elements elements_of(const Code& code, uint16_t index, const Slot* slots) {
  if (code.lengths[index] == 1) return {&slots[index].number, 0};
  return {slots[index].array, 1};
}

Fault run_elementwise(const Code& code, size_t index, const Slot* slots, double* result) {
  const Instruction& instruction = code.instructions[index];
  const size_t length = code.lengths[index];
  const Elements a = elements_of(code, instruction.a, slots);
  const Elements b = operands_of(instruction) == 2 ? elements_of(code, instruction.b, slots) : a;
  Fault fault = Fault::None;
  switch (instruction.inner) {
#define THESEUS_POLICY_CASE(name, function)                       \
  case Op::name:                                                  \
    for (size_t i = 0; i < length && fault == Fault::None; ++i) { \
      fault = function(a[i], result[i]);                          \
    }                                                             \
    break;
    THESEUS_POLICY_UNARY(THESEUS_POLICY_CASE)
#undef THESEUS_POLICY_CASE
#define THESEUS_POLICY_CASE(name, function)                       \
  case Op::name:                                                  \
    for (size_t i = 0; i < length && fault == Fault::None; ++i) { \
      fault = function(a[i], b[i], result[i]);                    \
    }                                                             \
    break;
    THESEUS_POLICY_BINARY(THESEUS_POLICY_CASE)
#undef THESEUS_POLICY_CASE
    default: assert(false);
  }
  return fault;
}

// In order of the elements, so that sums round alike everywhere.
Fault run_reduction(Op op, const double* array, size_t length, double& result) {
  double found = op == Op::Min || op == Op::Max ? array[0] : op == Op::All ? 1.0 : 0.0;
  for (size_t i = 0; i < length; ++i) {
    const double each = array[i];
    switch (op) {
      case Op::Min: found = each < found ? each : found; break;
      case Op::Max: found = each > found ? each : found; break;
      case Op::Sum: found += each; break;
      case Op::Count: found += each != 0 ? 1.0 : 0.0; break;
      case Op::Any: found = each != 0 ? 1.0 : found; break;
      case Op::All: found = each == 0 ? 0.0 : found; break;
      default: assert(false);
    }
  }
  return checked(result = found);
}

Fault read_element(const double* array, uint32_t length, double at, double& result) {
  if (!is_whole(at) || at >= length) return Fault::Index;
  result = array[static_cast<size_t>(at)];
  return Fault::None;
}

}  // namespace

Fault run_one(const Code& code, size_t index, Slot* slots, const Fields& fields, AttributeValues& values,
              double* arena) {
  const Instruction& instruction = code.instructions[index];
  Slot& result = slots[index];
  switch (instruction.op) {
#define THESEUS_POLICY_CASE(name, function) \
  case Op::name: return function(slots[instruction.a].number, result.number);
    THESEUS_POLICY_UNARY(THESEUS_POLICY_CASE)
#undef THESEUS_POLICY_CASE
#define THESEUS_POLICY_CASE(name, function) \
  case Op::name: return function(slots[instruction.a].number, slots[instruction.b].number, result.number);
    THESEUS_POLICY_BINARY(THESEUS_POLICY_CASE)
#undef THESEUS_POLICY_CASE
    case Op::Constant: result.number = instruction.constant(); return Fault::None;
    case Op::Field: result.number = fields[instruction.id()]; return Fault::None;
    case Op::Attribute: return load_number(instruction, values, result.number);
    case Op::ArrayAttribute: return load_array(instruction, code.lengths[index], values, result.array);
    case Op::Not: return truth_value(slots[instruction.a].number == 0, result.number);
    case Op::Truth: return truth_value(slots[instruction.a].number != 0, result.number);
    case Op::Copy: result = slots[instruction.a]; return Fault::None;
    case Op::Len: result.number = code.lengths[instruction.a]; return Fault::None;
    case Op::Index:
      return read_element(slots[instruction.a].array, code.lengths[instruction.a], slots[instruction.b].number,
                          result.number);
    case Op::NumberIndex:
      return read_element(&slots[instruction.a].number, 1, slots[instruction.b].number, result.number);
    case Op::Elementwise:
      result.array = arena + code.places[index];
      return run_elementwise(code, index, slots, arena + code.places[index]);
    case Op::Reduce:
      return run_reduction(instruction.inner, slots[instruction.a].array, code.lengths[instruction.a], result.number);
    default: assert(false); return Fault::None;
  }
}

Outcome run(const Code& code, const Fields& fields, AttributeValues& values) {
  Slot slots[kMostInstructions];  // each is written before it is read
  const std::unique_ptr<double[]> arena =
      code.arena > 0 ? std::make_unique_for_overwrite<double[]>(code.arena) : nullptr;
  const size_t size = code.instructions.size();
  assert(size > 0 && size <= kMostInstructions && code.lengths.size() == size);
  const Instruction* const instructions = code.instructions.data();
  for (size_t i = 0; i < size; ++i) {
    const Instruction& instruction = instructions[i];
    Fault fault = Fault::None;
    switch (instruction.op) {
// What most policies consist of goes without a second look at the operation.
#define THESEUS_POLICY_CASE(name, function) \
  case Op::name: fault = function(slots[instruction.a].number, slots[instruction.b].number, slots[i].number); break;
      THESEUS_POLICY_BINARY(THESEUS_POLICY_CASE)
#undef THESEUS_POLICY_CASE
      case Op::Constant: slots[i].number = instruction.constant(); break;
      case Op::Field: slots[i].number = fields[instruction.id()]; break;
      case Op::AndBranch:
        if (slots[instruction.a].number == 0) {
          i = instruction.end();
          slots[i].number = 0;
        }
        break;
      case Op::OrBranch:
        if (slots[instruction.a].number != 0) {
          i = instruction.end();
          slots[i].number = 1;
        }
        break;
      case Op::IfBranch:
        if (slots[instruction.a].number == 0) i = instruction.b;
        break;
      case Op::Jump:
        i = instruction.end();
        slots[i] = slots[instruction.a];
        break;
      case Op::And:
      case Op::Or: slots[i].number = slots[instruction.b].number != 0 ? 1.0 : 0.0; break;
      case Op::If: slots[i] = slots[instruction.c()]; break;
      default: fault = run_one(code, i, slots, fields, values, arena.get());
    }
    if (fault != Fault::None) [[unlikely]]
      return {0, fault, instruction.column};
  }
  return {slots[size - 1].number, Fault::None, 0};
}

const char* describe(Fault fault) {
  switch (fault) {
    case Fault::None: return "nothing";
    case Fault::DivisionByZero: return "division by zero";
    case Fault::NotANumber: return "the result is not a number";
    case Fault::NotWhole: return "bits and shifts need whole numbers from 0 to 2^53 - 1";
    case Fault::TooLarge: return "the result of the shift is not below 2^53";
    case Fault::Index: return "the index is no element's number (they start at 0)";
    case Fault::Length: return "the attribute has another length than its definition says";
  }
  return "unknown";
}

}  // namespace theseus::policy
