// From the arguments of a collective to the runtime: the path of every call, so no lock, allocation or string on
// success.
#pragma once

#include <cstddef>

#include "nccl_api/errors.h"
#include "nccl_api/fallback.h"
#include "nccl_api/groups.h"
#include "nccl_api/handles.h"
#include "nccl_api/redops.h"

namespace theseus::nccl_api {

// The cold half of check_call(): says what is wrong, and tells the open group.
ncclResult_t refuse_call(const char* function, ncclComm_t comm, int datatype);

// The communicator to run on, or null where the handle or the element type is bad.
inline Communicator* check_call(ncclComm_t comm, ncclDataType_t datatype) {
  if (static_cast<unsigned>(datatype) >= static_cast<unsigned>(kDataTypes)) [[unlikely]] {
    return nullptr;
  }
  return usable(comm);
}

// Status to result, inside a group also to the group.
inline ncclResult_t finish_call(const Status& status) {
  if (status.ok()) [[likely]] {
    return ncclSuccess;
  }
  return note_group_error(fail(status));
}

inline ncclResult_t run_collective(const char* function, Collective collective, const void* send, void* recv,
                                   size_t count, ncclDataType_t datatype, int op, int root, ncclComm_t comm,
                                   cudaStream_t stream) {
  Communicator* communicator = check_call(comm, datatype);
  if (communicator == nullptr) [[unlikely]] {
    return refuse_call(function, comm, static_cast<int>(datatype));
  }
  // Operators of our own making mean nothing to the real NCCL: their calls stay here, on all ranks.
  if (op < ncclNumOps && falls_back(*communicator, collective)) [[unlikely]] {
    return forward(communicator, {.function = function,
                                  .collective = collective,
                                  .send = send,
                                  .recv = recv,
                                  .count = count,
                                  .type = datatype,
                                  .op = op,
                                  .root = root,
                                  .stream = stream});
  }
  const CollectiveCall call{.collective = collective,
                            .send = send,
                            .recv = recv,
                            .count = count,
                            .type = static_cast<DataType>(datatype),
                            .op = op,
                            .root = root,
                            .stream = stream};
  if (op >= kFirstDeferredOp) [[unlikely]] {
    return finish_call(submit_deferred(comm, communicator, call));
  }
  return finish_call(communicator->submit(call));
}

}  // namespace theseus::nccl_api
