// The collectives, plain and with options. On host memory the stream is not looked at: a call returns when it is done.
#include <string>

#include "nccl_api/api.h"
#include "nccl_api/calls.h"
#include "nccl_api/config.h"

namespace theseus::nccl_api {

ncclResult_t refuse_call(const char* function, ncclComm_t comm, int datatype) {
  if (usable(comm) == nullptr) return note_group_error(refuse_handle(function, comm));
  return note_group_error(invalid_argument(
      function, "datatype " + std::to_string(datatype) + " is unknown: 0 (int8) to 11 (float8e5m2) are"));
}

ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) noexcept {
  return run_collective("ncclAllReduce", Collective::AllReduce, sendbuff, recvbuff, count, datatype, op, 0, comm,
                        stream);
}

ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream) noexcept {
  return run_collective("ncclBroadcast", Collective::Broadcast, sendbuff, recvbuff, count, datatype, 0, root, comm,
                        stream);
}

ncclResult_t ncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream) noexcept {
  return run_collective("ncclBcast", Collective::Broadcast, buff, buff, count, datatype, 0, root, comm, stream);
}

ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) noexcept {
  return run_collective("ncclReduce", Collective::Reduce, sendbuff, recvbuff, count, datatype, op, root, comm, stream);
}

ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream) noexcept {
  return run_collective("ncclAllGather", Collective::AllGather, sendbuff, recvbuff, sendcount, datatype, 0, 0, comm,
                        stream);
}

ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) noexcept {
  return run_collective("ncclReduceScatter", Collective::ReduceScatter, sendbuff, recvbuff, recvcount, datatype, op, 0,
                        comm, stream);
}

ncclResult_t ncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                          cudaStream_t stream) noexcept {
  return run_collective("ncclAlltoAll", Collective::AllToAll, sendbuff, recvbuff, count, datatype, 0, 0, comm, stream);
}

ncclResult_t ncclGather(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                        ncclComm_t comm, cudaStream_t stream) noexcept {
  return run_collective("ncclGather", Collective::Gather, sendbuff, recvbuff, count, datatype, 0, root, comm, stream);
}

ncclResult_t ncclScatter(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                         ncclComm_t comm, cudaStream_t stream) noexcept {
  return run_collective("ncclScatter", Collective::Scatter, sendbuff, recvbuff, count, datatype, 0, root, comm, stream);
}

// Options first: a call whose options are refused must not run.
#define CHECK_OPTIONS(function)                                                      \
  do {                                                                               \
    if (const Status checked = check_coll_config(function, config); !checked.ok()) { \
      return note_group_error(fail(checked));                                        \
    }                                                                                \
  } while (0)

ncclResult_t ncclAllReduceConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                 const ncclCollConfig_t* config) noexcept {
  CHECK_OPTIONS("ncclAllReduceConfig");
  return nccl_api::ncclAllReduce(sendbuff, recvbuff, count, datatype, op, comm, stream);
}

ncclResult_t ncclBroadcastConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) noexcept {
  CHECK_OPTIONS("ncclBroadcastConfig");
  return nccl_api::ncclBroadcast(sendbuff, recvbuff, count, datatype, root, comm, stream);
}

ncclResult_t ncclReduceConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                              ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream,
                              const ncclCollConfig_t* config) noexcept {
  CHECK_OPTIONS("ncclReduceConfig");
  return nccl_api::ncclReduce(sendbuff, recvbuff, count, datatype, op, root, comm, stream);
}

ncclResult_t ncclAllGatherConfig(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) noexcept {
  CHECK_OPTIONS("ncclAllGatherConfig");
  return nccl_api::ncclAllGather(sendbuff, recvbuff, sendcount, datatype, comm, stream);
}

ncclResult_t ncclReduceScatterConfig(const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype,
                                     ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                     const ncclCollConfig_t* config) noexcept {
  CHECK_OPTIONS("ncclReduceScatterConfig");
  return nccl_api::ncclReduceScatter(sendbuff, recvbuff, recvcount, datatype, op, comm, stream);
}

ncclResult_t ncclAlltoAllConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) noexcept {
  CHECK_OPTIONS("ncclAlltoAllConfig");
  return nccl_api::ncclAlltoAll(sendbuff, recvbuff, count, datatype, comm, stream);
}

ncclResult_t ncclGatherConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                              ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) noexcept {
  CHECK_OPTIONS("ncclGatherConfig");
  return nccl_api::ncclGather(sendbuff, recvbuff, count, datatype, root, comm, stream);
}

ncclResult_t ncclScatterConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                               ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) noexcept {
  CHECK_OPTIONS("ncclScatterConfig");
  return nccl_api::ncclScatter(sendbuff, recvbuff, count, datatype, root, comm, stream);
}

}  // namespace theseus::nccl_api
