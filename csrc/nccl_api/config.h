// Reading the size-prefixed option structs of callers that were compiled with other versions of nccl.h.
#pragma once

#include "base/result.h"
#include "nccl_api/include/nccl.h"
#include "runtime/communicator.h"

namespace theseus::nccl_api {

// NULL gives the defaults. Reads at most config->size bytes, and no member newer than config->version.
// InvalidArgument: no initializer, a size under the head's, or a value out of range; the message names the member.
Result<CommConfig> read_config(const char* function, const ncclConfig_t* config);

// Checks the options of one call; NULL is fine. On host memory they change nothing.
Status check_coll_config(const char* function, const ncclCollConfig_t* config);

}  // namespace theseus::nccl_api
