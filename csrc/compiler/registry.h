// The one table of built-in algorithms.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "compiler/algorithms.h"

namespace theseus {

struct BuiltIn {
  const char* name;
  const char* summary;    // for people
  uint32_t collectives;   // bit per Collective
  bool needs_even_hosts;  // hosts with equal numbers of ranks
  Result<Algorithm> (*build)(Collective, const Topology&, int root);

  bool makes(Collective collective) const { return (collectives >> static_cast<int>(collective) & 1) != 0; }
};

const std::vector<BuiltIn>& built_ins();
// Null where there is none of that name.
const BuiltIn* find_built_in(const std::string& name);

// Fails with InvalidArgument: unknown name (the message lists those that make this collective), a collective that the
// algorithm does not make, hosts that it cannot use, a root out of range. "healed:<arguments>" is no entry of the
// table, since no policy can choose it without its arguments (healed.h).
Result<Algorithm> build(const std::string& name, Collective collective, const Topology& topology, int root = 0);

}  // namespace theseus
