// The emulator's compiler: g++ makes a shared object of the kernel text, as it stands.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "drivers/cuda/api.h"

namespace theseus::cuda {

class EmuCompiler final : public KernelCompiler {
 public:
  // `program`: path or name of a C++ compiler; empty: the first of c++ and g++ on PATH. `flags`: further ones,
  // blank-separated. UnhandledCudaError where there is none.
  static Result<std::unique_ptr<EmuCompiler>> make(const std::string& program, const std::string& flags);

  Result<KernelImage> compile(const KernelSource& source, const DeviceInfo& device) override;
  std::string identity(const DeviceInfo& device) const override;

 private:
  std::string path_;
  std::string version_;
  std::vector<std::string> flags_;
};

}  // namespace theseus::cuda
