// The functions of libcuda.so.1, loaded by name. Types and numbers are those of NVIDIA's cuda.h, which no build needs.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"

namespace theseus::cuda {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
struct CUuuid {
  char bytes[16];
};
struct CUipcMemHandle {
  char reserved[64];
};

// CUDA 11.4 (driver R470): the oldest that has all functions in the list.
inline constexpr int kDriverVersion = 11040;

enum : CUresult {
  kCudaSuccess = 0,
  kCudaOutOfMemory = 2,
  kCudaStubLibrary = 34,
  kCudaNoDevice = 100,
  kCudaInvalidContext = 201,
  kCudaNoBinaryForGpu = 209,
  kCudaUnsupportedPtx = 222,
  kCudaNotFound = 500,
  kCudaNotReady = 600,
  kCudaPeerAccessAlreadyEnabled = 704,
};

struct DriverTable {
#define DRIVER_FUNCTION(name, symbol, arguments) CUresult(*name) arguments = nullptr;
#include "drivers/cuda/real_functions.def"
  int version = 0;  // of the driver: 12040 is CUDA 12.4

  // "cannot X: out of memory (CUDA_ERROR_OUT_OF_MEMORY)", as UnhandledCudaError.
  Status error(const std::string& what, CUresult result) const;
};

// Loads and initialises the driver in `library`. UnhandledCudaError that says which of: no driver, driver too old, no
// device, or the driver's own words; with the way out.
Result<DriverTable> load_driver(const std::string& library);

}  // namespace theseus::cuda
