// Modules of the emulator: shared objects in memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/fd.h"
#include "base/result.h"
#include "drivers/cuda/api.h"
#include "drivers/cuda/emu_device.h"

namespace theseus::cuda {

struct EmuModule;

struct EmuFunction {
  std::string name;
  emu::Entry entry = nullptr;
  uint32_t parameter_bytes = 0;
  int device = 0;
  std::shared_ptr<EmuModule> module;  // stays loaded while work with its functions is queued
};

struct EmuModule {
  EmuModule() = default;
  EmuModule(const EmuModule&) = delete;
  EmuModule& operator=(const EmuModule&) = delete;
  ~EmuModule();

  // InvalidArgument where the image is no shared object that the system can load.
  static Result<std::shared_ptr<EmuModule>> load(int device, const KernelImage& image);
  // InvalidArgument where there is no kernel of that name, or it was made for another emu_device.h.
  static Result<EmuFunction> find(const std::shared_ptr<EmuModule>& module, const std::string& name);

  int device = 0;
  void* library = nullptr;
  // The loader knows libraries by name, and this one's name is its descriptor's: open as long as it is loaded.
  Fd file;
};

}  // namespace theseus::cuda
