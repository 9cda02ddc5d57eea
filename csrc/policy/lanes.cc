#include "policy/lanes.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <utility>

namespace theseus::policy {

namespace {

// Bounds the memory that a run needs, on the stack.
constexpr size_t kMostInLanes = 64;

constexpr double kFailed = std::numeric_limits<double>::quiet_NaN();

bool is_plain(Op op) {
  switch (op) {
#define THESEUS_POLICY_CASE(name, function) case Op::name:
    THESEUS_POLICY_UNARY(THESEUS_POLICY_CASE)
    THESEUS_POLICY_BINARY(THESEUS_POLICY_CASE)
#undef THESEUS_POLICY_CASE
    case Op::Constant:
    case Op::Field:
    case Op::Attribute:
    case Op::Not:
    case Op::Truth: return true;
    default: return false;
  }
}

// A lane that has failed goes on with whatever number is there: every operation takes any. Never inline, where what
// __restrict says would be lost, and with it the vectors.
template <auto function>
[[gnu::noinline]] void run_lanes(const double* a, double* __restrict result, double* __restrict failed) {
  for (size_t i = 0; i < kLanes; ++i) {
    double number = 0;
    const Fault fault = function(a[i], number);
    result[i] = number;
    failed[i] = fault != Fault::None ? 1.0 : failed[i];
  }
}

template <auto function>
[[gnu::noinline]] void run_lanes(const double* a, const double* b, double* __restrict result,
                                 double* __restrict failed) {
  for (size_t i = 0; i < kLanes; ++i) {
    double number = 0;
    const Fault fault = function(a[i], b[i], number);
    result[i] = number;
    failed[i] = fault != Fault::None ? 1.0 : failed[i];
  }
}

Fault is_zero(double a, double& r) { return truth_value(a == 0, r); }
Fault is_not_zero(double a, double& r) { return truth_value(a != 0, r); }

void load_attribute(uint32_t id, AttributeValues& values, LaneNumbers& result, LaneNumbers& failed) {
  const std::span<const double> found = values.values(id);
  const bool is_number = found.size() == 1 && found[0] == found[0];
  result.fill(is_number ? found[0] : 0);
  if (!is_number) failed.fill(1);
}

void compute(Op op, const double* a, const double* b, double* result, double* failed) {
  switch (op) {
#define THESEUS_POLICY_CASE(name, function) \
  case Op::name: return run_lanes<function>(a, result, failed);
    THESEUS_POLICY_UNARY(THESEUS_POLICY_CASE)
#undef THESEUS_POLICY_CASE
#define THESEUS_POLICY_CASE(name, function) \
  case Op::name: return run_lanes<function>(a, b, result, failed);
    THESEUS_POLICY_BINARY(THESEUS_POLICY_CASE)
#undef THESEUS_POLICY_CASE
    case Op::Not: return run_lanes<is_zero>(a, result, failed);
    case Op::Truth: return run_lanes<is_not_zero>(a, result, failed);
    default: assert(false);
  }
}

}  // namespace

CodeKey key_of(const Code& code) {
  CodeKey key;
  const auto put = [&key](const auto& value) { key.text.append(reinterpret_cast<const char*>(&value), sizeof value); };
  key.text.reserve(code.instructions.size() * 22 + 8);
  put(uint64_t{code.instructions.size()});
  for (const Instruction& each : code.instructions) {
    put(each.op);
    put(each.inner);
    put(each.a);
    put(each.b);
    put(each.op == Op::Constant ? uint64_t{0} : each.payload);
  }
  key.shape_bytes = key.text.size();
  for (const Instruction& each : code.instructions) {
    if (each.op == Op::Constant) put(each.payload);
  }
  return key;
}

bool fits_lanes(const Code& code) {
  return code.instructions.size() <= kMostInLanes &&
         std::all_of(code.instructions.begin(), code.instructions.end(),
                     [](const Instruction& each) { return is_plain(each.op); });
}

Lanes::Lanes(std::shared_ptr<const Code> code) : code_(std::move(code)) {}

void Lanes::add(const Code& code) {
  assert(!is_full() && fits_lanes(code) && code.instructions.size() == code_->instructions.size());
  if (constants_.empty()) {  // lanes that nobody has do what the first does
    for (const Instruction& each : code_->instructions) {
      if (each.op == Op::Constant) constants_.insert(constants_.end(), kLanes, each.constant());
    }
  }
  size_t place = size_++;
  for (const Instruction& each : code.instructions) {
    if (each.op != Op::Constant) continue;
    constants_[place] = each.constant();
    place += kLanes;
  }
}

void Lanes::run(const Fields& fields, AttributeValues& values) {
  if (size_ > 1) return run_all(fields, values);
  const Outcome outcome = policy::run(*code_, fields, values);
  values_[0] = outcome.fault == Fault::None ? outcome.value : kFailed;
}

void Lanes::run_all(const Fields& fields, AttributeValues& values) {
  LaneNumbers made[kMostInLanes];       // by instruction
  const double* numbers[kMostInLanes];  // by instruction: where its results lie
  const double* constant = constants_.data();
  const size_t size = code_->instructions.size();
  LaneNumbers failed = {};  // 0 or 1: as wide as numbers, so that compilers make vectors of both
  for (size_t i = 0; i < size; ++i) {
    const Instruction& instruction = code_->instructions[i];
    numbers[i] = made[i].data();
    switch (instruction.op) {
      case Op::Constant:
        numbers[i] = constant;
        constant += kLanes;
        break;
      case Op::Field: made[i].fill(fields[instruction.id()]); break;
      case Op::Attribute: load_attribute(instruction.id(), values, made[i], failed); break;
      default: compute(instruction.op, numbers[instruction.a], numbers[instruction.b], made[i].data(), failed.data());
    }
  }
  const double* const results = numbers[size - 1];
  for (size_t lane = 0; lane < kLanes; ++lane) values_[lane] = failed[lane] != 0 ? kFailed : results[lane];
}

}  // namespace theseus::policy
