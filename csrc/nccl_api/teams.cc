// The host side of the device API that is meaningful without one: properties, teams, plain arithmetic. Once a
// communicator has a twin (twins.h), it is the twin that kernels use, and the twin that is asked.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>

#include "nccl_api/api.h"
#include "nccl_api/errors.h"
#include "nccl_api/forward.h"
#include "nccl_api/handles.h"
#include "nccl_api/real_nccl.h"
#include "nccl_api/twins.h"

namespace theseus::nccl_api {
namespace {

// These functions return no code: a bad handle gives a team of nobody and a message.
constexpr ncclTeam_t kNobody = {0, -1, 0};
constexpr ncclTeam_t kAlone = {1, 0, 1};

ncclTeam_t world_of(const char* function, ncclComm_t comm) {
  const Communicator* communicator = find(comm);
  if (communicator == nullptr) {
    (void)refuse_handle(function, comm);
    return kNobody;
  }
  return {communicator->ranks(), communicator->rank(), 1};
}

ncclTeam_t self_of(const char* function, ncclComm_t comm) {
  if (find(comm) != nullptr) return kAlone;
  (void)refuse_handle(function, comm);
  return kNobody;
}

// What the twin answers; nothing where there is none, or it has no such function.
template <auto Function, class... Arguments>
auto ask_twin(ncclComm_t comm, Arguments... arguments) {
  using Answer = decltype(((*real_nccl()).*Function)(comm, arguments...));
  const Communicator* communicator = find(comm);
  const ncclComm_t twin = communicator == nullptr ? nullptr : twin_of(communicator);
  if (twin == nullptr || (*real_nccl()).*Function == nullptr) return std::optional<Answer>();
  return std::optional<Answer>(((*real_nccl()).*Function)(twin, arguments...));
}

}  // namespace

ncclTeam_t ncclTeamWorld(ncclComm_t comm) noexcept { return world_of("ncclTeamWorld", comm); }

ncclTeam_t ncclTeamRail(ncclComm_t comm) noexcept {
  const auto team = ask_twin<&RealNccl::ncclTeamRail>(comm);
  return team ? *team : world_of("ncclTeamRail", comm);
}

ncclTeam_t ncclTeamLsa(ncclComm_t comm) noexcept {
  const auto team = ask_twin<&RealNccl::ncclTeamLsa>(comm);
  return team ? *team : self_of("ncclTeamLsa", comm);
}

ncclTeam_t ncclTeamCft(ncclComm_t comm, ncclCftTeamMode_t mode) noexcept {
  const auto team = ask_twin<&RealNccl::ncclTeamCft>(comm, mode);
  return team ? *team : self_of("ncclTeamCft", comm);
}

ncclTeam_t ncclTeamCftMultimem(ncclComm_t comm) noexcept {
  const auto team = ask_twin<&RealNccl::ncclTeamCftMultimem>(comm);
  return team ? *team : self_of("ncclTeamCftMultimem", comm);
}

int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank) noexcept {
  return world_of("ncclTeamRankToWorld", comm).rank + (rank - team.rank) * team.stride;
}

int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank) noexcept {
  if (const auto found = ask_twin<&RealNccl::ncclTeamRankToLsa>(comm, team, rank)) return *found;
  return self_of("ncclTeamRankToLsa", comm).rank + (rank - team.rank) * team.stride;
}

// One slot carries 8 bytes.
int ncclLLA2ACalcSlots(int maxElts, int maxEltSize) noexcept { return maxElts * ((maxEltSize + 7) / 8); }

ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* props) noexcept {
  constexpr const char* kFunction = "ncclCommQueryProperties";
  const Communicator* communicator = find(comm);
  if (communicator == nullptr) return refuse_handle(kFunction, comm);
  if (props == nullptr) return invalid_argument(kFunction, "props is NULL");
  constexpr size_t kHead = offsetof(ncclCommProperties_t, rank);
  if (props->magic != NCCL_API_MAGIC || props->size < kHead) {
    return invalid_argument(kFunction, "props was not initialised: start from NCCL_COMM_PROPERTIES_INITIALIZER");
  }
  if (const auto result = ask_twin<&RealNccl::ncclCommQueryProperties>(comm, props)) {
    return report(real_status(*real_nccl(), kFunction, *result));
  }
  ncclCommProperties_t filled = {};
  filled.rank = communicator->rank();
  filled.nRanks = communicator->ranks();
  filled.cudaDev = slot_of(comm)->device;
  filled.nvmlDev = -1;
  // Its first use makes the twin, which then knows the rest.
  const RealNccl* real = communicator->on_gpu() ? real_nccl_of_gpus() : nullptr;
  filled.deviceApiSupport = real != nullptr && real->ncclDevCommCreate != nullptr;
  filled.nLsaTeams = communicator->ranks();
  filled.ginMinStride = 1;
  // Behind the head, which is the caller's, and no further than the caller's version of the struct reaches.
  const size_t end = std::min(props->size, sizeof(filled));
  std::memcpy(reinterpret_cast<char*>(props) + kHead, reinterpret_cast<const char*>(&filled) + kHead, end - kHead);
  return ncclSuccess;
}

}  // namespace theseus::nccl_api
