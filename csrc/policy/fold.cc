// Folding: what is known is computed once, and what can no longer be reached goes.
//
// An instruction that fails stays as it is, since it may never be reached; so a folded policy gives the same numbers
// and the same faults.
#include <memory>

#include "policy/bytecode.h"

namespace theseus::policy {

namespace {

// Where nothing fixed is given.
class NoValues : public AttributeValues {
 public:
  std::span<const double> values(uint32_t) override { return {}; }
};

// Whether its number can only be 0 or 1.
bool is_truth(const Instruction& instruction) {
  switch (instruction.op) {
    case Op::Not:
    case Op::Truth:
    case Op::Both:
    case Op::And:
    case Op::Or: return true;
    case Op::Reduce: return instruction.inner == Op::Any || instruction.inner == Op::All;
    default: return is_comparison(instruction.op);
  }
}

class Folder {
 public:
  Folder(const Code& code, const Givens& givens)
      : code_(code),
        givens_(givens),
        size_(code.instructions.size()),
        known_(size_, false),
        alias_(size_),
        slots_(std::make_unique_for_overwrite<Slot[]>(size_)),
        arena_(std::make_unique_for_overwrite<double[]>(code.arena)) {
    for (const auto& [field, value] : givens.fields) fields_[static_cast<size_t>(field)] = value;
  }

  Code run() {
    for (size_t i = 0; i < size_; ++i) {
      alias_[i] = static_cast<uint16_t>(i);
      const Op op = code_.instructions[i].op;
      if (is_join(op)) {
        fold_join(i);
      } else if (!is_branch(op)) {
        fold_plain(i);
      }
    }
    mark();
    return emit();
  }

 private:
  bool known_number(uint16_t i) const { return known_[i] && code_.lengths[i] == 1; }
  bool is_given(const Instruction& instruction) const {
    if (instruction.op == Op::Constant) return true;
    if (instruction.op == Op::Field) {
      for (const auto& [field, value] : givens_.fields) {
        if (static_cast<uint32_t>(field) == instruction.id()) return true;
      }
      return false;
    }
    return givens_.values != nullptr && givens_.fixed != nullptr && instruction.id() < givens_.fixed->size() &&
           (*givens_.fixed)[instruction.id()];
  }

  void know(size_t i, double value) {
    slots_[i].number = value;
    known_[i] = true;
  }
  // i is now the same as an earlier one.
  void set_alias(size_t i, uint16_t other) {
    alias_[i] = alias_[other];
    known_[i] = known_[other];
    if (known_[i]) slots_[i] = slots_[other];
  }

  void fold_plain(size_t i) {
    Instruction& instruction = code_.instructions[i];
    const int operands = operands_of(instruction);
    if (operands == 0 && !is_given(instruction)) return;
    if (operands >= 1 && !known_[instruction.a]) return simplify(i);
    if (operands >= 2 && !known_[instruction.b]) return simplify(i);
    NoValues none;
    AttributeValues& values = givens_.values != nullptr ? *givens_.values : none;
    known_[i] = run_one(code_, i, slots_.get(), fields_, values, arena_.get()) == Fault::None;
  }

  void simplify(size_t i) {
    const Instruction& instruction = code_.instructions[i];
    if (instruction.op == Op::Copy) {
      set_alias(i, instruction.a);
    } else if (instruction.op == Op::Truth && is_truth(code_.instructions[alias_[instruction.a]])) {
      set_alias(i, instruction.a);
    } else if (instruction.op == Op::Both) {
      // Its operands are comparisons: one that is known to be true adds nothing.
      if (known_number(instruction.a) && slots_[instruction.a].number != 0) {
        set_alias(i, instruction.b);
      } else if (known_number(instruction.b) && slots_[instruction.b].number != 0) {
        set_alias(i, instruction.a);
      }
    }
  }

  // The And or Or is the truth of one of its sides.
  void become_truth(size_t i, uint16_t side) {
    if (known_[side]) return know(i, slots_[side].number != 0 ? 1.0 : 0.0);
    code_.instructions[i] = {Op::Truth, Op::Constant, code_.instructions[i].column, side, 0, 0};
    simplify(i);
  }

  void fold_join(size_t i) {
    const Instruction instruction = code_.instructions[i];
    const uint16_t a = instruction.a, b = instruction.b;
    if (instruction.op == Op::If) {
      if (known_[a]) set_alias(i, slots_[a].number != 0 ? b : instruction.c());
      return;
    }
    const bool is_and = instruction.op == Op::And;
    if (known_[a]) {
      if ((slots_[a].number != 0) == is_and) return become_truth(i, b);
      return know(i, is_and ? 0.0 : 1.0);
    }
    // The other way round a may still fail, so only what says nothing goes.
    if (known_[b] && (slots_[b].number != 0) == is_and) become_truth(i, a);
  }

  // Which instructions the result needs. Names lead backwards only, and a branch stands before its join.
  void mark() {
    live_.assign(size_, false);
    live_[alias_[size_ - 1]] = true;
    for (size_t i = size_; i-- > 0;) {
      Instruction& instruction = code_.instructions[i];
      if (is_branch(instruction.op)) {
        const uint16_t end = instruction.end();
        live_[i] = live_[end] && !known_number(end) && is_join(code_.instructions[end].op);
      }
      if (!live_[i] || known_number(static_cast<uint16_t>(i))) continue;
      const int operands = operands_of(instruction);
      if (operands >= 1) live_[alias_[instruction.a]] = true;
      if (operands >= 2) live_[alias_[instruction.b]] = true;
      if (operands >= 3) live_[alias_[instruction.c()]] = true;
    }
  }

  Code emit() {
    std::vector<uint16_t> places(size_, 0);  // new numbers
    uint16_t next = 0;
    for (size_t i = 0; i < size_; ++i) {
      places[i] = next;
      if (live_[i]) ++next;
    }
    Code folded;
    folded.instructions.reserve(next);
    folded.lengths.reserve(next);
    for (size_t i = 0; i < size_; ++i) {
      if (!live_[i]) continue;
      Instruction instruction = code_.instructions[i];
      if (known_number(static_cast<uint16_t>(i))) {
        instruction = make_constant(slots_[i].number, instruction.column);
      } else {
        change_references(instruction, [&](uint16_t other) { return places[alias_[other]]; });
      }
      folded.instructions.push_back(instruction);
      folded.lengths.push_back(code_.lengths[i]);
    }
    assign_places(folded);
    return folded;
  }

  Code code_;  // a copy: joins become truths
  const Givens& givens_;
  const size_t size_;
  Fields fields_{};
  std::vector<bool> known_;
  std::vector<uint16_t> alias_;  // the instruction whose result is the same
  std::vector<bool> live_;
  std::unique_ptr<Slot[]> slots_;
  std::unique_ptr<double[]> arena_;
};

}  // namespace

Code fold(const Code& code, const Givens& givens) { return Folder(code, givens).run(); }

}  // namespace theseus::policy
