// From Status to ncclResult_t, and the calling thread's message for ncclGetLastError.
#pragma once

#include <string>

#include "base/result.h"
#include "nccl_api/include/nccl.h"

namespace theseus::nccl_api {

// Keeps `message` for ncclGetLastError on this thread.
void set_last_error(const std::string& message);
// Valid until this thread's next failing call; "" when nothing has failed.
const char* last_error();

// Keeps the message, returns the code. InProgress is no failure and leaves the last message alone.
ncclResult_t fail(const Status& status);

// A refused argument: "ncclAllReduce: comm is NULL".
ncclResult_t invalid_argument(const char* function, const std::string& why);
ncclResult_t invalid_usage(const char* function, const std::string& why);

// Success costs one comparison: this stands on the path of every collective.
inline ncclResult_t report(const Status& status) {
  if (status.ok()) [[likely]] {
    return ncclSuccess;
  }
  return fail(status);
}

}  // namespace theseus::nccl_api
