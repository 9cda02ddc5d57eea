#include "nccl_api/api.h"
#include "nccl_api/calls.h"

namespace theseus::nccl_api {

ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t) noexcept {
  Communicator* communicator = check_call(comm, datatype);
  if (communicator == nullptr) [[unlikely]] {
    return refuse_call("ncclSend", comm, static_cast<int>(datatype));
  }
  return finish_call(communicator->send(sendbuff, count, static_cast<DataType>(datatype), peer));
}

ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t) noexcept {
  Communicator* communicator = check_call(comm, datatype);
  if (communicator == nullptr) [[unlikely]] {
    return refuse_call("ncclRecv", comm, static_cast<int>(datatype));
  }
  return finish_call(communicator->recv(recvbuff, count, static_cast<DataType>(datatype), peer));
}

}  // namespace theseus::nccl_api
