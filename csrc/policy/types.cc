// Types of a policy: the length of every result, known once attributes are, so that nothing has to be checked later.
#include "policy/bytecode.h"
#include "policy/lexer.h"

namespace theseus::policy {

namespace {

bool is_unary(Op op) { return op <= Op::Abs; }
bool is_binary(Op op) { return op > Op::Abs && op <= Op::Greatest; }
bool is_reduction(Op op) { return op >= Op::Min && op <= Op::Count; }

std::string elements(uint32_t length) { return length == 1 ? "a number" : std::to_string(length) + " elements"; }

class Typist {
 public:
  Typist(Code& code, const std::vector<uint32_t>& lengths, const std::vector<uint32_t>& ids)
      : code_(code), attribute_lengths_(lengths), ids_(ids) {}

  Status run() {
    code_.lengths.assign(code_.instructions.size(), 1);
    for (size_t i = 0; i < code_.instructions.size(); ++i) {
      THESEUS_TRY(type(i));
      if (visited_ > kMostElements) {
        return fault_at(code_.instructions[i].column, "the policy visits more than " + std::to_string(kMostElements) +
                                                          " elements of arrays; publish what it needs as a number");
      }
    }
    if (const uint32_t length = code_.lengths.back(); length != 1) {
      return fault_at(code_.instructions.back().column,
                      "the result is an array (" + elements(length) +
                          "); min, max, sum, any, all, count or an index makes a number of it");
    }
    assign_places(code_);
    if (code_.arena > kLongestArray) {
      return Status::argument("policy: its arrays in between have more than " + std::to_string(kLongestArray) +
                              " elements; publish what it needs as a number");
    }
    return {};
  }

 private:
  uint32_t length(uint16_t index) const { return code_.lengths[index]; }
  void visit(uint16_t index) { visited_ += length(index) > 1 ? length(index) : 0; }

  Status need_number(uint16_t index, const Instruction& instruction, const char* what) const {
    if (length(index) == 1) return {};
    return fault_at(instruction.column, std::string(what) + " takes a number, not an array (" +
                                            elements(length(index)) + "); any(), all(), min() and others make one");
  }

  Status type(size_t index) {
    Instruction& instruction = code_.instructions[index];
    uint32_t& result = code_.lengths[index];
    if (is_unary(instruction.op)) {
      result = length(instruction.a);
    } else if (is_binary(instruction.op)) {
      const uint32_t a = length(instruction.a), b = length(instruction.b);
      if (a != b && a != 1 && b != 1) {
        return fault_at(instruction.column, "the arrays have " + std::to_string(a) + " and " + std::to_string(b) +
                                                " elements; they take part one by one, so both need as many");
      }
      result = a > b ? a : b;
    } else {
      return type_other(instruction, result);
    }
    if (result > 1) {
      instruction.inner = instruction.op;
      instruction.op = Op::Elementwise;
      visited_ += result;
    }
    return {};
  }

  Status type_other(Instruction& instruction, uint32_t& result) {
    if (is_reduction(instruction.op)) {
      visit(instruction.a);
      if (length(instruction.a) > 1) {
        instruction.inner = instruction.op;
        instruction.op = Op::Reduce;
      } else {
        instruction.op = instruction.op <= Op::Sum ? Op::Copy : Op::Truth;
      }
      return {};
    }
    switch (instruction.op) {
      case Op::Attribute:
        result = attribute_lengths_[instruction.id()];
        instruction.op = result == 1 ? Op::Attribute : Op::ArrayAttribute;
        instruction.payload = ids_[instruction.id()];
        visited_ += result > 1 ? result : 0;
        return {};
      case Op::Not: return need_number(instruction.a, instruction, "'not'");
      case Op::Index:
        if (length(instruction.a) == 1) instruction.op = Op::NumberIndex;
        return need_number(instruction.b, instruction, "an index");
      case Op::AndBranch: return need_number(instruction.a, instruction, "'and'");
      case Op::OrBranch: return need_number(instruction.a, instruction, "'or'");
      case Op::IfBranch: return need_number(instruction.a, instruction, "a condition");
      case Op::And: return need_number(instruction.b, instruction, "'and'");
      case Op::Or: return need_number(instruction.b, instruction, "'or'");
      case Op::If:
        result = length(instruction.b);
        if (result == length(instruction.c())) return {};
        return fault_at(instruction.column, "'if' chooses between " + elements(result) + " and " +
                                                elements(length(instruction.c())) + "; both must be alike");
      default: return {};
    }
  }

  Code& code_;
  const std::vector<uint32_t>& attribute_lengths_;
  const std::vector<uint32_t>& ids_;
  uint64_t visited_ = 0;
};

}  // namespace

int operands_of(const Instruction& instruction) {
  const Op op = instruction.op == Op::Elementwise ? instruction.inner : instruction.op;
  if (is_unary(op)) return 1;
  if (is_binary(op)) return 2;
  switch (op) {
    case Op::Constant:
    case Op::Field:
    case Op::Attribute:
    case Op::ArrayAttribute: return 0;
    case Op::Index:
    case Op::NumberIndex:
    case Op::And:
    case Op::Or: return 2;
    case Op::If: return 3;
    default: return 1;
  }
}

Status assign_types(Code& code, const std::vector<uint32_t>& lengths, const std::vector<uint32_t>& ids) {
  return Typist(code, lengths, ids).run();
}

void assign_places(Code& code) {
  code.places.clear();
  uint64_t used = 0;
  for (size_t i = 0; i < code.instructions.size(); ++i) {
    if (code.instructions[i].op != Op::Elementwise) continue;
    code.places.resize(code.instructions.size(), 0);
    code.places[i] = static_cast<uint32_t>(used);
    used += code.lengths[i];
  }
  // At most kMostInstructions * kLongestArray, which fits.
  code.arena = static_cast<uint32_t>(used);
}

}  // namespace theseus::policy
