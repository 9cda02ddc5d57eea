// What every call of the real driver happens in, and how its results become Status. For real*.cc alone.
#pragma once

#include <string>
#include <utility>

#include "drivers/cuda/real_driver.h"

namespace theseus::cuda {

// The context of a device on this thread, and leave to make calls that a capture elsewhere in the process would forbid:
// none of ours touches a stream that it was not given.
class RealDriver::Scope {
 public:
  Scope(const DriverTable& table, CUcontext context) : table_(table), pushed_(table.cuCtxPushCurrent(context)) {
    constexpr int relaxed = 2;
    mode_ = relaxed;
    if (pushed_ == kCudaSuccess) table_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope() {
    if (pushed_ != kCudaSuccess) return;
    CUcontext popped = nullptr;
    table_.cuThreadExchangeStreamCaptureMode(&mode_);
    table_.cuCtxPopCurrent(&popped);
  }
  CUresult pushed() const { return pushed_; }

 private:
  const DriverTable& table_;
  const CUresult pushed_;
  int mode_;
};

inline Status RealDriver::result(const char* what, CUresult result) const {
  return result == kCudaSuccess ? Status() : table_.error(std::string("cannot ") + what, result);
}

template <class Function, class... Arguments>
Status RealDriver::call(int device, const char* what, Function function, Arguments... arguments) {
  Result<CUcontext> with = context(device);
  if (!with) return with.status();
  const Scope scope(table_, *with);
  if (scope.pushed() != kCudaSuccess) return result("use the device's context", scope.pushed());
  return result(what, function(arguments...));
}

template <class Function, class Object>
Result<bool> RealDriver::done(int device, const char* what, Function function, Object object) {
  CUresult answer = kCudaSuccess;
  THESEUS_TRY(call(device, what, [&] {
    answer = function(object);
    return answer == kCudaNotReady ? kCudaSuccess : answer;
  }));
  return answer == kCudaSuccess;
}

inline CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }
inline void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

}  // namespace theseus::cuda
