// Version, error texts, and switches of the whole library.
#include <cstddef>
#include <string>

#include "base/env.h"
#include "nccl_api/api.h"
#include "nccl_api/errors.h"
#include "nccl_api/handles.h"

namespace theseus::nccl_api {

ncclResult_t ncclGetVersion(int* version) noexcept {
  if (version == nullptr) return invalid_argument("ncclGetVersion", "version is NULL");
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

// The texts are NCCL's own, to the letter: programs and their logs are searched for them.
const char* ncclGetErrorString(ncclResult_t result) noexcept {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError: return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    case ncclTimeout: return "timeout";
    default: return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t comm) noexcept {
  // A thread that only watches has no message of its own: give it the communicator's.
  if (*last_error() == '\0') {
    if (Communicator* communicator = find(comm); communicator != nullptr) {
      const Status error = communicator->async_error();
      if (!error.ok() && error.code() != Code::InProgress) set_last_error(error.message());
    }
  }
  return last_error();
}

// Reads the settings again, those of the log among them.
void ncclResetDebugInit() noexcept { reload_settings(); }
void ncclResetDebugInitInternal() noexcept { reload_settings(); }

ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t* config) noexcept {
  constexpr const char* kFunction = "ncclSetEncryption";
  if (config == nullptr) return ncclSuccess;
  if (config->magic != NCCL_API_MAGIC || config->size < offsetof(ncclEncryptionConfig_t, psk)) {
    return invalid_argument(kFunction, "config was not initialised: start from NCCL_ENCRYPTION_CONFIG_INITIALIZER");
  }
  if (config->mode == NCCL_ENCRYPTION_MODE_NONE) return ncclSuccess;
  if (config->mode == NCCL_ENCRYPTION_MODE_PSK) {
    return invalid_usage(kFunction, "encrypted sockets are not offered: run the ranks inside an encrypted network");
  }
  return invalid_argument(kFunction, "config.mode is " + std::to_string(config->mode) + ", must be 0 or 1");
}

}  // namespace theseus::nccl_api
