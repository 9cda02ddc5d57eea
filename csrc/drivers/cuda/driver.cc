// Which driver this process has.
#include <memory>
#include <string>

#include "base/env.h"
#include "base/fork.h"
#include "base/log.h"
#include "drivers/cuda/emu.h"
#include "drivers/cuda/real.h"

namespace theseus::cuda {
namespace {

// Never destroyed: streams and kernels may run until the process ends.
Result<Driver*> choose() {
  const std::string device = settings::device();
  if (device == "host") return static_cast<Driver*>(nullptr);
  if (device == "cuda-emu") return static_cast<Driver*>(new Emulator(EmulatorOptions::from_settings()));
  if (device != "cuda" && device != "auto")
    THESEUS_WARN("THESEUS_DEVICE=%s is none of host, cuda, cuda-emu and auto; auto it is", device.c_str());
  Result<std::unique_ptr<Driver>> real = open_real_driver();
  if (real) return real->release();
  if (device == "cuda") return real.status();
  THESEUS_INFO(kLogInit, "buffers are host memory: %s", real.status().message().c_str());
  return static_cast<Driver*>(nullptr);
}

}  // namespace

Result<Driver*> driver() {
  THESEUS_TRY(check_not_forked());
  static const Result<Driver*> chosen = choose();
  return chosen;
}

}  // namespace theseus::cuda
