#include "nccl_api/redops.h"

#include <mutex>
#include <string>
#include <unordered_map>

#include "nccl_api/api.h"
#include "nccl_api/errors.h"
#include "nccl_api/handles.h"

namespace theseus::nccl_api {
namespace {

struct DeferredOp {
  ncclComm_t comm;
  DataType type;
  const void* scalar;  // the caller's, alive until the operator is destroyed
};

struct DeferredOps {
  std::mutex mutex;
  std::unordered_map<int, DeferredOp> ops;
  int next = kFirstDeferredOp;
};

DeferredOps& deferred_ops() {
  static DeferredOps* const ops = new DeferredOps;  // never destroyed: threads may still call while the process ends
  return *ops;
}

ncclRedOp_t defer(ncclComm_t comm, DataType type, const void* scalar) {
  DeferredOps& deferred = deferred_ops();
  const std::lock_guard lock(deferred.mutex);
  const int op = deferred.next;
  deferred.next = op == INT_MAX ? kFirstDeferredOp : op + 1;
  deferred.ops[op] = {comm, type, scalar};
  return static_cast<ncclRedOp_t>(op);
}

}  // namespace

Status submit_deferred(ncclComm_t comm, Communicator* communicator, CollectiveCall call) {
  DeferredOp op;
  {
    DeferredOps& deferred = deferred_ops();
    const std::lock_guard lock(deferred.mutex);
    const auto found = deferred.ops.find(call.op);
    if (found == deferred.ops.end() || found->second.comm != comm) {
      return Status::argument("op " + std::to_string(call.op) + " is not an operator of this communicator");
    }
    op = found->second;
  }
  if (op.type != call.type) {
    return Status::argument(std::string("the operator was made for ") + name_of(op.type) + ", the call is of " +
                            name_of(call.type));
  }
  Result<int> handle = communicator->create_premulsum(op.type, op.scalar, /*pointed=*/true);
  if (!handle.ok()) return handle.status();
  call.op = *handle;
  const Status submitted = communicator->submit(call);
  // The call has captured the operator's value, so it may go even when the call itself waits for the end of a group.
  const Status destroyed = communicator->destroy_op(*handle);
  return submitted.ok() ? destroyed : submitted;
}

void forget_ops(ncclComm_t comm) {
  DeferredOps& deferred = deferred_ops();
  const std::lock_guard lock(deferred.mutex);
  std::erase_if(deferred.ops, [comm](const auto& entry) { return entry.second.comm == comm; });
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm) noexcept {
  constexpr const char* kFunction = "ncclRedOpCreatePreMulSum";
  Communicator* communicator = usable(comm);
  if (communicator == nullptr) return refuse_handle(kFunction, comm);
  if (op == nullptr) return invalid_argument(kFunction, "op is NULL");
  if (scalar == nullptr) return invalid_argument(kFunction, "scalar is NULL");
  if (static_cast<unsigned>(datatype) >= static_cast<unsigned>(kDataTypes)) {
    return invalid_argument(kFunction, "datatype " + std::to_string(datatype) + " is unknown: 0 to 11 are");
  }
  const DataType type = static_cast<DataType>(datatype);
  if (residence == ncclScalarDevice) {
    *op = defer(comm, type, scalar);
    return ncclSuccess;
  }
  if (residence != ncclScalarHostImmediate) {
    return invalid_argument(kFunction, "residence " + std::to_string(residence) + " is unknown: 0 and 1 are");
  }
  const Result<int> handle = communicator->create_premulsum(type, scalar);
  if (!handle.ok()) return fail(handle.status());
  *op = static_cast<ncclRedOp_t>(handle.value());
  return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) noexcept {
  constexpr const char* kFunction = "ncclRedOpDestroy";
  const int number = static_cast<int>(op);
  if (number >= 0 && number < ncclNumOps) {
    return invalid_argument(kFunction, "operator " + std::to_string(number) + " is built in");
  }
  Communicator* communicator = find(comm);
  if (communicator == nullptr) return refuse_handle(kFunction, comm);
  if (number < kFirstDeferredOp) return report(communicator->destroy_op(number));
  DeferredOps& deferred = deferred_ops();
  const std::lock_guard lock(deferred.mutex);
  const auto found = deferred.ops.find(number);
  if (found == deferred.ops.end() || found->second.comm != comm) {
    return invalid_argument(kFunction, "op " + std::to_string(number) + " is not an operator of this communicator");
  }
  deferred.ops.erase(found);
  return ncclSuccess;
}

}  // namespace theseus::nccl_api
