// Ending communicators, and pausing them.
#include <string>

#include "nccl_api/api.h"
#include "nccl_api/errors.h"
#include "nccl_api/fallback.h"
#include "nccl_api/groups.h"
#include "nccl_api/handles.h"
#include "nccl_api/memory.h"
#include "nccl_api/redops.h"

namespace theseus::nccl_api {
namespace {

// NULL is accepted, as by NCCL.
ncclResult_t end_communicator(const char* function, ncclComm_t comm, Ending ending) {
  if (comm == nullptr) return ncclSuccess;
  Communicator* communicator = release(comm);
  if (communicator == nullptr) return refuse_handle(function, comm);
  forget_ops(comm);
  forget_registrations(comm);
  if (group_depth() > 0) {
    end_after_group(communicator, ending);
    return ncclSuccess;
  }
  return report(end_both(communicator, ending));
}

}  // namespace

ncclResult_t ncclCommFinalize(ncclComm_t comm) noexcept {
  constexpr const char* kFunction = "ncclCommFinalize";
  if (comm == nullptr) return ncclSuccess;
  Communicator* communicator = usable(comm);
  if (communicator == nullptr) return refuse_handle(kFunction, comm);
  CommSlot* slot = slot_of(comm);
  if (slot->revoked) return invalid_argument(kFunction, "the communicator was revoked: destroy or abort it");
  if (slot->finalized.exchange(true)) return invalid_argument(kFunction, "the communicator was finalized before");
  return report(communicator->finalize());
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) noexcept {
  return end_communicator("ncclCommDestroy", comm, Ending::Destroy);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) noexcept { return end_communicator("ncclCommAbort", comm, Ending::Abort); }

ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags) noexcept {
  constexpr const char* kFunction = "ncclCommRevoke";
  if (comm == nullptr) return ncclSuccess;
  Communicator* communicator = find(comm);
  if (communicator == nullptr) return refuse_handle(kFunction, comm);
  if (revokeFlags != NCCL_REVOKE_DEFAULT) {
    return invalid_argument(kFunction,
                            "revokeFlags is " + std::to_string(revokeFlags) + ", must be NCCL_REVOKE_DEFAULT (0)");
  }
  CommSlot* slot = slot_of(comm);
  if (slot->finalized) return invalid_argument(kFunction, "the communicator was finalized before");
  if (slot->revoked.exchange(true)) return invalid_argument(kFunction, "the communicator was revoked before");
  return report(communicator->revoke());
}

// On host memory a suspended communicator has no GPU memory to give back; that it cannot be used meanwhile is kept.
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags) noexcept {
  constexpr const char* kFunction = "ncclCommSuspend";
  if (find(comm) == nullptr) return refuse_handle(kFunction, comm);
  if (flags != NCCL_SUSPEND_MEM) {
    return invalid_argument(kFunction, "flags is " + std::to_string(flags) + ", must be NCCL_SUSPEND_MEM (1)");
  }
  CommSlot* slot = slot_of(comm);
  if (slot->suspended.exchange(true)) return invalid_usage(kFunction, "the communicator is suspended already");
  slot->active.store(nullptr, std::memory_order_release);
  return ncclSuccess;
}

ncclResult_t ncclCommResume(ncclComm_t comm) noexcept {
  constexpr const char* kFunction = "ncclCommResume";
  Communicator* communicator = find(comm);
  if (communicator == nullptr) return refuse_handle(kFunction, comm);
  CommSlot* slot = slot_of(comm);
  if (!slot->suspended.exchange(false)) return invalid_usage(kFunction, "the communicator is not suspended");
  slot->active.store(communicator, std::memory_order_release);
  return ncclSuccess;
}

}  // namespace theseus::nccl_api
