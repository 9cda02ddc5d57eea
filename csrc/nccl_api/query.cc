// Asking communicators.
#include <string>

#include "nccl_api/api.h"
#include "nccl_api/errors.h"
#include "nccl_api/fallback.h"
#include "nccl_api/handles.h"

namespace theseus::nccl_api {

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) noexcept {
  constexpr const char* kFunction = "ncclCommGetAsyncError";
  Communicator* communicator = find(comm);
  if (communicator == nullptr) return refuse_handle(kFunction, comm);
  if (asyncError == nullptr) return invalid_argument(kFunction, "asyncError is NULL");
  Status error = communicator->async_error();
  if (error.ok()) error = twin_error(communicator);
  if (!error.ok()) {
    *asyncError = fail(error);  // keeps the message: whoever asks next asks why
  } else {
    *asyncError = communicator->in_progress() ? ncclInProgress : ncclSuccess;
  }
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) noexcept {
  constexpr const char* kFunction = "ncclCommCount";
  const Communicator* communicator = find(comm);
  if (communicator == nullptr) return refuse_handle(kFunction, comm);
  if (count == nullptr) return invalid_argument(kFunction, "count is NULL");
  *count = communicator->ranks();
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) noexcept {
  constexpr const char* kFunction = "ncclCommUserRank";
  const Communicator* communicator = find(comm);
  if (communicator == nullptr) return refuse_handle(kFunction, comm);
  if (rank == nullptr) return invalid_argument(kFunction, "rank is NULL");
  *rank = communicator->rank();
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) noexcept {
  constexpr const char* kFunction = "ncclCommCuDevice";
  if (find(comm) == nullptr) return refuse_handle(kFunction, comm);
  if (device == nullptr) return invalid_argument(kFunction, "device is NULL");
  *device = slot_of(comm)->device;
  return ncclSuccess;
}

ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value) noexcept {
  constexpr const char* kFunction = "ncclCommMemStats";
  if (find(comm) == nullptr) return refuse_handle(kFunction, comm);
  if (value == nullptr) return invalid_argument(kFunction, "value is NULL");
  if (static_cast<unsigned>(stat) > ncclStatGpuMemTotal) {
    return invalid_argument(kFunction, "stat " + std::to_string(stat) + " is unknown: 0 to 3 are");
  }
  // All of them speak of GPU memory, and a communicator on host memory holds none.
  *value = stat == ncclStatGpuMemSuspended && slot_of(comm)->suspended ? 1 : 0;
  return ncclSuccess;
}

}  // namespace theseus::nccl_api
