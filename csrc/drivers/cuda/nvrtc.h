// The real compiler: NVRTC, taken from wherever the user's own CUDA is.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "drivers/cuda/api.h"

namespace theseus::cuda {

// What is called in libnvrtc. Results are nvrtcResult, 0 for success.
struct NvrtcTable {
  int (*nvrtcVersion)(int*, int*);
  const char* (*nvrtcGetErrorString)(int);
  int (*nvrtcGetNumSupportedArchs)(int*);
  int (*nvrtcGetSupportedArchs)(int*);
  int (*nvrtcCreateProgram)(void**, const char*, const char*, int, const char* const*, const char* const*);
  int (*nvrtcDestroyProgram)(void**);
  int (*nvrtcCompileProgram)(void*, int, const char* const*);
  int (*nvrtcGetProgramLogSize)(void*, size_t*);
  int (*nvrtcGetProgramLog)(void*, char*);
  int (*nvrtcGetCUBINSize)(void*, size_t*);
  int (*nvrtcGetCUBIN)(void*, char*);
  int (*nvrtcGetPTXSize)(void*, size_t*);
  int (*nvrtcGetPTX)(void*, char*);
};

class NvrtcCompiler final : public KernelCompiler {
 public:
  // Looks in THESEUS_NVRTC, else in the places of nvrtc_places(); libraries for a newer CUDA than the driver's come
  // last. `driver_version`: 12040 is CUDA 12.4. UnhandledCudaError that names the places and what to install.
  static Result<std::unique_ptr<NvrtcCompiler>> find(int driver_version);

  // What find() says where there is none.
  static Status none(int driver_version);

  // A cubin for the device's sm; where this NVRTC does not know it yet, PTX for the newest that it knows.
  Result<KernelImage> compile(const KernelSource& source, const DeviceInfo& device) override;
  std::string identity(const DeviceInfo& device) const override;

  const std::string& path() const { return path_; }
  int version() const { return version_; }  // 12090 is 12.9

 private:
  static Result<std::unique_ptr<NvrtcCompiler>> open(const std::string& path);
  Status error(const std::string& what, int result) const;
  std::vector<std::string> flags(const DeviceInfo& device) const;
  // The newest architecture of NVRTC's that the device runs: its own, or an older one.
  int architecture(const DeviceInfo& device) const;
  Result<KernelImage> image(void* program, const KernelSource& source, bool cubin) const;
  std::string log(void* program) const;

  NvrtcTable table_{};
  std::string path_;
  std::string include_;  // folder of CUDA's headers; empty: not found
  int version_ = 0;
  std::vector<int> architectures_;  // ascending
};

// Files that may be an NVRTC, the likeliest first: loaded in this process already; in the Python packages of this
// process (PyTorch's and CuPy's are among them); by name on the loader's path; in CUDA toolkits.
std::vector<std::string> nvrtc_places();

}  // namespace theseus::cuda
