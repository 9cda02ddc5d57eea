// Why a function is not offered here, for ncclGetLastError: never, or (those that are `forward`) on host memory.
#include <cstring>
#include <string>
#include <string_view>

#include "nccl_api/api.h"
#include "nccl_api/errors.h"

namespace theseus::nccl_api {
namespace {

const char* reason(std::string_view function) {
  if (function == "ncclPutSignal" || function == "ncclSignal" || function == "ncclWaitSignal") {
    return "one-sided transfers are not offered on host memory (hostRmaSupport is false): use ncclSend and ncclRecv";
  }
  if (function == "ncclGroupSimulateEnd") {
    return "no time is estimated on host memory, and the group stays open: end it with ncclGroupEnd";
  }
  return "the device API of NCCL is compiled into the caller's kernels; on host memory there is none "
         "(deviceApiSupport is false)";
}

}  // namespace

ncclResult_t unsupported(const char* function) noexcept { return invalid_usage(function, reason(function)); }

}  // namespace theseus::nccl_api
