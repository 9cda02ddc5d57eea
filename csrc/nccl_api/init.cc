// Making communicators from unique ids.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "nccl_api/api.h"
#include "nccl_api/config.h"
#include "nccl_api/errors.h"
#include "nccl_api/fallback.h"
#include "nccl_api/groups.h"
#include "nccl_api/handles.h"
#include "nccl_api/lifecycle.h"

namespace theseus::nccl_api {
namespace {

static_assert(sizeof(ncclUniqueId) == sizeof(UniqueId));

ncclResult_t init_rank(const char* function, ncclComm_t* comm, int nranks, const ncclUniqueId& id, int rank,
                       const ncclConfig_t* config) {
  if (comm == nullptr) return invalid_argument(function, "comm is NULL");
  *comm = nullptr;
  if (nranks < 1) return invalid_argument(function, "nranks is " + std::to_string(nranks) + ", must be at least 1");
  if (rank < 0 || rank >= nranks) {
    return invalid_argument(
        function, "rank is " + std::to_string(rank) + ", must be from 0 to nranks - 1 = " + std::to_string(nranks - 1));
  }
  const Result<CommConfig> options = read_config(function, config);
  if (!options.ok()) return fail(options.status());
  const Result<Communicator*> made = Communicator::init(from_nccl(id), nranks, rank, *options);
  return hand_out(function, made, made.ok() ? std::max(0, made.value()->config().device) : 0, comm);
}

// Takes back what was handed out, where something that belongs to it could not be made.
ncclResult_t take_back(const Status& why, ncclComm_t* comms, int count) {
  for (int i = 0; i < count; ++i) {
    if (Communicator* communicator = release(comms[i]); communicator != nullptr) {
      (void)end_both(communicator, Ending::Abort);
    }
    comms[i] = nullptr;
  }
  return fail(why);
}

}  // namespace

UniqueId from_nccl(const ncclUniqueId& id) {
  UniqueId result;
  std::memcpy(&result, &id, sizeof(result));
  return result;
}

ncclUniqueId to_nccl(const UniqueId& id) {
  ncclUniqueId result;
  std::memcpy(&result, &id, sizeof(result));
  return result;
}

ncclResult_t hand_out(const char* function, const Result<Communicator*>& made, int device, ncclComm_t* out,
                      bool alone) {
  read_fallback();
  if (!made.ok()) return note_group_error(fail(made.status()));
  Communicator* communicator = made.value();
  if (communicator == nullptr) return ncclSuccess;  // ncclCommSplit with NCCL_SPLIT_NOCOLOR
  *out = adopt(communicator, device);
  if (*out == nullptr) {
    (void)Communicator::abort(communicator);
    return fail(Status::internal(std::string(function) + ": " + std::to_string(kCommSlots) +
                                 " communicators are open in this process, no more fit: destroy some"));
  }
  if (group_depth() > 0) {
    note_group_init(out);
    return ncclSuccess;
  }
  if (alone) {
    if (const Status twins = make_early_twins({communicator}); !twins.ok()) return take_back(twins, out, 1);
  }
  return communicator->blocking() || !communicator->in_progress() ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId) noexcept {
  if (uniqueId == nullptr) return invalid_argument("ncclGetUniqueId", "uniqueId is NULL");
  const Result<UniqueId> id = Communicator::create_unique_id();
  if (!id.ok()) return fail(id.status());
  *uniqueId = to_nccl(id.value());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank) noexcept {
  return init_rank("ncclCommInitRank", comm, nranks, commId, rank, nullptr);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t* config) noexcept {
  return init_rank("ncclCommInitRankConfig", comm, nranks, commId, rank, config);
}

// Every rank passes the same ids in the same order, so the first names the communicator; start-up does not need more.
ncclResult_t ncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId, ncclUniqueId* commIds,
                                      ncclConfig_t* config) noexcept {
  constexpr const char* kFunction = "ncclCommInitRankScalable";
  if (newcomm == nullptr) return invalid_argument(kFunction, "newcomm is NULL");
  *newcomm = nullptr;
  if (nId < 1 || nId > nranks) {
    return invalid_argument(kFunction,
                            "nId is " + std::to_string(nId) + ", must be from 1 to nranks = " + std::to_string(nranks));
  }
  if (commIds == nullptr) return invalid_argument(kFunction, "commIds is NULL");
  return init_rank(kFunction, newcomm, nranks, commIds[0], myrank, config);
}

ncclResult_t ncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist) noexcept {
  constexpr const char* kFunction = "ncclCommInitAll";
  if (comm == nullptr) return invalid_argument(kFunction, "comm is NULL");
  if (ndev < 1) return invalid_argument(kFunction, "ndev is " + std::to_string(ndev) + ", must be at least 1");
  for (int i = 0; i < ndev; ++i) comm[i] = nullptr;
  for (int i = 0; devlist != nullptr && i < ndev; ++i) {
    if (devlist[i] < 0) {
      return invalid_argument(
          kFunction, "devlist[" + std::to_string(i) + "] is " + std::to_string(devlist[i]) + ", must not be negative");
    }
  }
  const std::vector<int> devices = devlist == nullptr ? std::vector<int>() : std::vector<int>(devlist, devlist + ndev);
  const Result<std::vector<Communicator*>> made = Communicator::init_all(ndev, devices);
  if (!made.ok()) return note_group_error(fail(made.status()));
  ncclResult_t result = ncclSuccess;
  for (int i = 0; i < ndev; ++i) {
    const int device = devlist == nullptr ? i : devlist[i];
    const ncclResult_t handed = hand_out(kFunction, made.value()[static_cast<size_t>(i)], device, &comm[i], false);
    if (result == ncclSuccess) result = handed;
  }
  if (result != ncclSuccess || group_depth() > 0) return result;
  const Status twins = make_early_twins(*made);
  return twins.ok() ? result : take_back(twins, comm, ndev);
}

}  // namespace theseus::nccl_api
