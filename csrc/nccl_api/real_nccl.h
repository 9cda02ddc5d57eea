// The real NCCL's functions, by the names of nccl_api.def.
#pragma once

#include <string>

#include "base/result.h"
#include "nccl_api/include/nccl.h"
#include "nccl_api/include/nccl_device.h"

namespace theseus::nccl_api {

// Handles of the one library mean nothing to the other: what one of these made goes to these alone.
struct RealNccl {
  std::string path;
  int code = 0;  // its version, as NCCL_VERSION_CODE
  // Null where that version has none.
#define NCCL_FUNCTION(disposition, version, type, name, parameters, arguments) type(*name) parameters = nullptr;
#include "nccl_api/nccl_api.def"
};

// Found and loaded at the first call; the same answer ever after. The Status says what to do where there is none.
const Result<RealNccl>& real_nccl();

// The Status of a call of the real NCCL, in its own words.
Status real_status(const RealNccl& nccl, const char* function, ncclResult_t result);

}  // namespace theseus::nccl_api
