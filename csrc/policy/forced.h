// THESEUS_ALGO: which algorithms may be used. The grammar is NCCL_ALGO's.
//
//   value   = group { ";" group }
//   group   = list                     for every collective; only as the first group
//           | collective ":" list      for one, overriding the first
//   list    = [ "^" ] name { "," name }        "^": all but these
//
// Case and blanks do not matter: "ring,tree", "^tree", "ring;AllReduce:^direct;broadcast:tree".
#pragma once

#include <array>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace theseus {

struct Forced {
  struct List {
    bool is_set = false;
    bool excludes = false;
    std::vector<std::string> names;
  };
  std::array<List, kCollectives> lists;  // by Collective

  bool allows(Collective collective, const std::string& algorithm) const;
};

// "" allows everything. Fails with InvalidArgument, quoting the word at fault and listing what is known.
Result<Forced> parse_algo(const std::string& value);

}  // namespace theseus
