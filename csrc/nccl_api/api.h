// The functions behind the exported names: theseus::nccl_api::ncclX for every native entry of nccl_api.def, and
// every one that is either.
//
// exports.cc makes the C symbols that call them. Call them qualified only: an unqualified ncclX(comm) would be
// ambiguous with the C function of the same name.
#pragma once

#include "nccl_api/include/nccl.h"
#include "nccl_api/include/nccl_device.h"

namespace theseus::nccl_api {

#define NCCL_DECLARE_native(type, name, parameters) type name parameters noexcept;
#define NCCL_DECLARE_either(type, name, parameters) type name parameters noexcept;
#define NCCL_DECLARE_forward(type, name, parameters)
#define NCCL_DECLARE_unsupported(type, name, parameters)
#define NCCL_FUNCTION(disposition, version, type, name, parameters, arguments) \
  NCCL_DECLARE_##disposition(type, name, parameters)
#include "nccl_api/nccl_api.def"
#undef NCCL_DECLARE_native
#undef NCCL_DECLARE_either
#undef NCCL_DECLARE_forward
#undef NCCL_DECLARE_unsupported

// What an unsupported function returns: ncclInvalidUsage, with the reason in ncclGetLastError.
ncclResult_t unsupported(const char* function) noexcept;

}  // namespace theseus::nccl_api
