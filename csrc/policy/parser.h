// Text of a policy to its instructions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "policy/bytecode.h"

namespace theseus::policy {

inline constexpr int kDeepestPolicy = 64;  // parentheses, calls, choices and signs inside each other

struct Parsed {
  Code code;                       // not typed
  std::vector<std::string> names;  // of attributes, in order of first use; Op::Attribute's payload indexes them
};
// InvalidArgument: names the column and what was expected there.
Result<Parsed> parse(std::string_view text);

}  // namespace theseus::policy
