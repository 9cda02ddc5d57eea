#include "nccl_api/errors.h"

#include "base/log.h"

namespace theseus::nccl_api {
namespace {

thread_local std::string last_message;

std::string with_function(const char* function, const std::string& why) { return std::string(function) + ": " + why; }

}  // namespace

void set_last_error(const std::string& message) { last_message = message; }

const char* last_error() { return last_message.c_str(); }

ncclResult_t fail(const Status& status) {
  if (status.code() != Code::InProgress) {
    set_last_error(status.message());
    THESEUS_WARN(status.message());
  }
  return static_cast<ncclResult_t>(status.code());
}

ncclResult_t invalid_argument(const char* function, const std::string& why) {
  return fail(Status::argument(with_function(function, why)));
}

ncclResult_t invalid_usage(const char* function, const std::string& why) {
  return fail(Status::usage(with_function(function, why)));
}

}  // namespace theseus::nccl_api
