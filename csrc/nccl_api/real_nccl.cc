#include "nccl_api/real_nccl.h"

#include "base/log.h"
#include "drivers/nccl/library.h"

namespace theseus::nccl_api {
namespace {

Result<RealNccl> load() {
  const Result<nccl::Library> library = nccl::Library::find();
  if (!library.ok()) return library.status();
  RealNccl real;
  real.path = library->path();
  real.code = library->version();
#define NCCL_FUNCTION(disposition, version, type, name, parameters, arguments) \
  real.name = reinterpret_cast<type(*) parameters>(library->function(#name));
#include "nccl_api/nccl_api.def"
  THESEUS_INFO(kLogInit, "the real NCCL is %s, %s", nccl::version_text(real.code).c_str(), real.path.c_str());
  return real;
}

}  // namespace

const Result<RealNccl>& real_nccl() {
  static const Result<RealNccl>* const loaded = new Result<RealNccl>(load());  // never destroyed: as the library
  return *loaded;
}

Status real_status(const RealNccl& nccl, const char* function, ncclResult_t result) {
  if (result == ncclSuccess) return {};
  const char* text = nccl.ncclGetErrorString(result);
  const char* more = nccl.ncclGetLastError == nullptr ? nullptr : nccl.ncclGetLastError(nullptr);
  std::string message = std::string(function) + ", by NCCL " + nccl::version_text(nccl.code) + " (" + nccl.path + "): ";
  message += text == nullptr ? std::to_string(result) : text;
  if (more != nullptr && *more != '\0') message += std::string("; ") + more;
  return {static_cast<Code>(result), std::move(message)};
}

}  // namespace theseus::nccl_api
