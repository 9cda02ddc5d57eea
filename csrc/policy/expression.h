// Policies: expressions over a request and agreed attributes, such as
//     usable = "bytes >= 1<<20 and min(nic_health) < 0.5"
//
// Deterministic and total: no loops, no recursion at run time, bounded size, arithmetic and comparisons only (no math
// library), so that all ranks get the same bits. Safe to take from the network. Errors at run time (division by zero,
// an index out of range, a NaN result) make the schedule unusable.
//
// Grammar, lowest precedence first: `a if c else b` · or · and · not · < <= > >= == != (chains as in Python) · | · ^ ·
// & · << >> · + - · * / // % · unary - + · x[i] · calls · numbers (1_000, 0x10, 1.5e3; suffixes K M G of 1024), true,
// false, names, (…). Functions: min max sum len abs any all count(array < x ...) floor ceil.
// An attribute whose name holds '-', or is a word of the language, stands between back quotes.
// Arrays take part element by element with a number or an array of the same length; usable and score must be numbers.
// docs/guides/policies.md is the whole language for users.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "context/log.h"

namespace theseus {

namespace policy {
struct Code;  // policy/bytecode.h
}

// What NCCL obliges to be equal on all ranks. Enumerations are written as names: collective == allreduce,
// dtype == float32, op == sum. Policies see doubles: count and bytes beyond 2^53 are rounded to the nearest one.
struct PolicyRequest {
  Collective collective = Collective::AllReduce;
  DataType type = DataType::Float32;
  RedOp op = RedOp::Sum;  // sum where the collective does not reduce
  int32_t root = 0;
  uint64_t count = 0;
  uint64_t bytes = 0;  // of the whole data space, as policy/choose.h
  int32_t ranks = 1;
  int32_t hosts = 1;
  int32_t rails = 1;
};

// Where attribute values come from, by id.
class AttributeValues {
 public:
  virtual ~AttributeValues() = default;
  // What it leads to stays as it is while an expression is evaluated or folded.
  virtual std::span<const double> values(uint32_t attribute) = 0;
};

// The number of elements of an attribute of a snapshot; 1: a number.
uint32_t length_of(const Attribute& attribute);

class Expression {
 public:
  // InvalidArgument: names the column and what was expected there. Attribute names are not looked up yet.
  static Result<Expression> parse(std::string_view text);

  // Names that are no field of a request, in order of first use.
  const std::vector<std::string>& attributes() const { return attributes_; }
  // Their ids, as bind() found them.
  const std::vector<uint32_t>& attribute_ids() const { return ids_; }
  // Looks attribute names up. InvalidArgument: one that the snapshot lacks, arrays of lengths that do not fit each
  // other, an array where a number is needed (the result is one), or too much work.
  Status bind(const std::vector<Attribute>& attributes);
  // A number, or why there is none. Only after bind() (needless where attributes() is empty).
  Result<double> evaluate(const PolicyRequest& request, AttributeValues& values) const;
  // With attribute values put in as constants where `fixed` (by attribute id) says they do not move before the next
  // agreement, and everything constant computed. evaluate() gives the same. An array that is indexed by a field, or
  // otherwise needed as a whole, is still read.
  Expression folded(AttributeValues& values, const std::vector<bool>& fixed) const;
  // Whether the result can change from one request to an equal one.
  bool reads_attributes() const;
  // Null before bind() where it has attributes.
  const policy::Code* code() const { return code_.get(); }

 private:
  std::vector<std::string> attributes_;
  std::vector<uint32_t> ids_;
  std::shared_ptr<const policy::Code> parsed_;  // as the text says
  std::shared_ptr<const policy::Code> code_;    // with types
};

}  // namespace theseus
