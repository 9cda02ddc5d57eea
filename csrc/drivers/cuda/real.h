// The real driver: libcuda.so.1, found and loaded at run time.
#pragma once

#include <memory>
#include <string>

#include "drivers/cuda/api.h"

namespace theseus::cuda {

// UnhandledCudaError that says which of: no driver, driver too old, no device; with the way out.
Result<std::unique_ptr<Driver>> open_real_driver(const std::string& library = "libcuda.so.1");

}  // namespace theseus::cuda
