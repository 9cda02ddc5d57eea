// Reduction operators whose scalar is read when the collective is called (ncclScalarDevice).
#pragma once

#include "nccl_api/include/nccl.h"
#include "runtime/communicator.h"

namespace theseus::nccl_api {

// Operators of the runtime are numbered from 5; those kept here from this value, so that one comparison tells them
// apart.
inline constexpr int kFirstDeferredOp = 0x40000000;

// Runs `call` with the scalar's present value in place of the deferred operator call.op.
Status submit_deferred(ncclComm_t comm, Communicator* communicator, CollectiveCall call);

// Forgets the deferred operators of a communicator that ends.
void forget_ops(ncclComm_t comm);

}  // namespace theseus::nccl_api
