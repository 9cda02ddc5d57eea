// Thread blocks for the connections of a rank (ResCCL, section 3.3).
#pragma once

#include <cstdint>
#include <vector>

namespace theseus {

enum class TbAllocation : uint8_t {
  PerConnection,          // one TB for each end of a connection
  PerConnectionAndStage,  // as MSCCL: one for each stage of each (on a channel of its own); see Scheduling::StageLevel
  StateBased,             // connections that are never active in the same sub-pipeline share a TB
  // As StateBased on the rank with the most TBs; every other rank spreads its connections over as many. A kernel's grid
  // is as large on all ranks, so nothing is saved where a rank leaves some of it idle, and sharing costs time.
  StateBasedEven,
  // As StateBased, but connections between hosts share with nobody: a TB that waits for the network holds nothing up.
  StateBasedApart,
};
inline constexpr int kTbAllocations = 5;
const char* name_of(TbAllocation allocation);  // "StateBased"

// Connections that must have one TB, since one instruction needs them all, and the sub-pipelines in which they are
// active (ascending, without repetition).
struct ConnectionGroup {
  std::vector<int16_t> connections;  // ascending
  std::vector<int32_t> active;
  bool between_hosts = false;  // one of them leaves the host
};

// The TB of each group: groups whose active sub-pipelines overlap never share one. Greedy, with few TBs rather than the
// fewest, which is graph colouring; but never more than groups, and as few as possible where each group's activity is
// an interval. TBs are numbered by their first group.
std::vector<int32_t> share_thread_blocks(const std::vector<ConnectionGroup>& groups, int sub_pipelines);

// The same, but with up to `most` TBs where it would need fewer: groups that share one get TBs of their own, those
// between hosts first, since they take longest and whoever shares with them waits, then the busiest.
std::vector<int32_t> spread_thread_blocks(const std::vector<ConnectionGroup>& groups, int sub_pipelines, int32_t most);

// The same, but each group between hosts has a TB of its own.
std::vector<int32_t> part_thread_blocks(const std::vector<ConnectionGroup>& groups, int sub_pipelines);

// How many TBs `tb_of` names.
int32_t count_thread_blocks(const std::vector<int32_t>& tb_of);

}  // namespace theseus
