// Thread blocks for the connections of a rank (ResCCL, section 3.3).
#pragma once

#include <cstdint>
#include <vector>

namespace theseus {

enum class TbAllocation : uint8_t {
  PerConnection,          // one TB for each end of a connection
  PerConnectionAndStage,  // as MSCCL: one for each stage of each (on a channel of its own); see Scheduling::StageLevel
  StateBased,             // connections that are never active in the same sub-pipeline share a TB
};
inline constexpr int kTbAllocations = 3;
const char* name_of(TbAllocation allocation);  // "StateBased"

// Connections that must have one TB, since one instruction needs them all, and the sub-pipelines in which they are
// active (ascending, without repetition).
struct ConnectionGroup {
  std::vector<int16_t> connections;  // ascending
  std::vector<int32_t> active;
};

// The TB of each group: groups whose active sub-pipelines overlap never share one. Greedy, with few TBs rather than the
// fewest, which is graph colouring; but never more than groups, and as few as possible where each group's activity is
// an interval. TBs are numbered by their first group.
std::vector<int32_t> share_thread_blocks(const std::vector<ConnectionGroup>& groups, int sub_pipelines);

}  // namespace theseus
