// Which messages a rank passes on in the instruction that receives them. See compile.h for when that is safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compiler/rank_ends.h"
#include "schedule/plan.h"

namespace theseus {

struct Fused {
  std::vector<int32_t> send_of;     // of each end that receives: the end that it also sends, or -1
  std::vector<int32_t> receive_of;  // of each end that sends: the end that does it, or -1
  std::vector<uint8_t> keeps;       // of each end that receives: 0 where only the next rank wants the value
  bool any = false;
};

// `ends`: those of one rank, among `all`.
Fused fuse_ends(const TaskGraph& graph, const Pipeline& pipeline, const RankEnds& all, std::span<const RankEnd> ends,
                LoopOrder loop);

}  // namespace theseus
