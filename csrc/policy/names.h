// The words of the policy language that are not attributes: fields of a request, and names of their values.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "policy/expression.h"

namespace theseus::policy {

enum class Field : uint8_t { Collective, Bytes, Count, DType, Op, Root, Ranks, Hosts, Rails };
inline constexpr int kFields = 9;

// What a value means. Values of the other kinds are compared with one of their own kind by == and !=, and nothing else.
enum class Kind : uint8_t { Number, Collective, DType, Op };

struct Word {
  enum class Role : uint8_t { Field, Constant } role = Role::Field;
  Field field = Field::Bytes;  // of a field
  Kind kind = Kind::Number;
  double value = 0;  // of a constant
};
// Empty: an attribute's name.
std::optional<Word> find_word(std::string_view name);
// "a collective"
const char* describe(Kind kind);
// "allreduce, allgather, ...": the names of a kind's values, other spellings left out.
std::string names_of(Kind kind);

// A request as policies see it: one double a field. Integers beyond 2^53 are rounded to the nearest double.
using Fields = std::array<double, kFields>;
Fields fields_of(const PolicyRequest& request);

}  // namespace theseus::policy
