#include "nccl_api/api.h"
#include "nccl_api/calls.h"

namespace theseus::nccl_api {

ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream) noexcept {
  Communicator* communicator = check_call(comm, datatype);
  if (communicator == nullptr) [[unlikely]] {
    return refuse_call("ncclSend", comm, static_cast<int>(datatype));
  }
  if (falls_back(*communicator, Collective::SendRecv)) [[unlikely]] {
    return forward(communicator, {.function = "ncclSend",
                                  .collective = Collective::SendRecv,
                                  .sends = true,
                                  .send = sendbuff,
                                  .count = count,
                                  .type = datatype,
                                  .root = peer,
                                  .stream = stream});
  }
  return finish_call(communicator->send(sendbuff, count, static_cast<DataType>(datatype), peer, stream));
}

ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream) noexcept {
  Communicator* communicator = check_call(comm, datatype);
  if (communicator == nullptr) [[unlikely]] {
    return refuse_call("ncclRecv", comm, static_cast<int>(datatype));
  }
  if (falls_back(*communicator, Collective::SendRecv)) [[unlikely]] {
    return forward(communicator, {.function = "ncclRecv",
                                  .collective = Collective::SendRecv,
                                  .recv = recvbuff,
                                  .count = count,
                                  .type = datatype,
                                  .root = peer,
                                  .stream = stream});
  }
  return finish_call(communicator->recv(recvbuff, count, static_cast<DataType>(datatype), peer, stream));
}

}  // namespace theseus::nccl_api
