// Shared by the functions that make communicators.
#pragma once

#include "nccl_api/include/nccl.h"
#include "runtime/communicator.h"

namespace theseus::nccl_api {

// Hands a freshly made communicator to the caller in *out (NULL on failure). Returns ncclInProgress where a
// non-blocking one is still being made. `alone` false: others of its ranks follow on this thread, and the caller makes
// the twins of all (fallback.h).
ncclResult_t hand_out(const char* function, const Result<Communicator*>& made, int device, ncclComm_t* out,
                      bool alone = true);

UniqueId from_nccl(const ncclUniqueId& id);
ncclUniqueId to_nccl(const UniqueId& id);

}  // namespace theseus::nccl_api
