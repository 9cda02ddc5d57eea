#include "drivers/cuda/real_table.h"

#include <dlfcn.h>

#include <utility>

namespace theseus::cuda {
namespace {

constexpr const char* kWayOut = "; THESEUS_DEVICE=host works on host memory, THESEUS_DEVICE=cuda-emu on emulated GPUs";
constexpr unsigned long long kLegacyStream = 1;  // cuGetProcAddress: a null stream is the legacy one

Status cuda_error(std::string message) { return {Code::UnhandledCudaError, std::move(message) + kWayOut}; }

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// dlsym, or cuGetProcAddress, which follows what tools put in between.
class Symbols {
 public:
  explicit Symbols(void* library)
      : library_(library),
        get_(reinterpret_cast<Get>(dlsym(library, "cuGetProcAddress"))),
        get_v2_(reinterpret_cast<GetV2>(dlsym(library, "cuGetProcAddress_v2"))) {}

  void* plain(const char* symbol) const { return dlsym(library_, symbol); }
  void* find(const char* name, const char* symbol) const {
    void* address = nullptr;
    int found = 0;
    if (get_v2_ != nullptr && get_v2_(name, &address, kDriverVersion, kLegacyStream, &found) == kCudaSuccess &&
        address != nullptr)
      return address;
    if (get_v2_ == nullptr && get_ != nullptr && get_(name, &address, kDriverVersion, kLegacyStream) == kCudaSuccess &&
        address != nullptr)
      return address;
    return plain(symbol);
  }

 private:
  using Get = CUresult (*)(const char*, void**, int, unsigned long long);
  using GetV2 = CUresult (*)(const char*, void**, int, unsigned long long, int*);
  void* library_;
  Get get_;
  GetV2 get_v2_;
};

Status initialise(const Symbols& symbols, const std::string& library, DriverTable& table) {
  const auto version = reinterpret_cast<CUresult (*)(int*)>(symbols.plain("cuDriverGetVersion"));
  const auto init = reinterpret_cast<CUresult (*)(unsigned)>(symbols.plain("cuInit"));
  if (version == nullptr || init == nullptr) return cuda_error(library + " is no CUDA driver: it has no cuInit");
  if (version(&table.version) != kCudaSuccess) table.version = 0;
  if (table.version != 0 && table.version < kDriverVersion) {
    return cuda_error("the NVIDIA driver is too old: it supports CUDA " + version_text(table.version) +
                      ", 11.4 is needed (driver 470); update the driver");
  }
#define DRIVER_FUNCTION(name, symbol, arguments) \
  table.name = reinterpret_cast<CUresult(*) arguments>(symbols.find(#name, #symbol));
#include "drivers/cuda/real_functions.def"
  const CUresult result = init(0);
  if (result == kCudaSuccess) return {};
  if (result == kCudaNoDevice)
    return cuda_error(
        "no NVIDIA GPU is visible: check nvidia-smi, CUDA_VISIBLE_DEVICES, and what the container is given");
  if (result == kCudaStubLibrary)
    return cuda_error(library + " is the stub for linking, no driver: take it off LD_LIBRARY_PATH");
  if (table.cuGetErrorString == nullptr || table.cuGetErrorName == nullptr)
    return cuda_error("the NVIDIA driver cannot start: error " + std::to_string(result));
  return cuda_error(table.error("the NVIDIA driver cannot start", result).message());
}

}  // namespace

Status DriverTable::error(const std::string& what, CUresult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName(result, &name) != kCudaSuccess || name == nullptr) name = "unknown";
  if (cuGetErrorString(result, &text) != kCudaSuccess || text == nullptr) text = "an error unknown to the driver";
  return {Code::UnhandledCudaError, what + ": " + text + " (" + name + ", " + std::to_string(result) + ")"};
}

Result<DriverTable> load_driver(const std::string& library) {
  // Never closed: the driver has threads of its own.
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return cuda_error("no NVIDIA driver on this machine: " + std::string(why == nullptr ? library : why) +
                      " (install the driver; in a container, give it the GPUs)");
  }
  DriverTable table;
  THESEUS_TRY(initialise(Symbols(handle), library, table));
#define DRIVER_FUNCTION(name, symbol, arguments) \
  if (table.name == nullptr)                     \
    return cuda_error("the NVIDIA driver is too old: it has no " #symbol "; update the driver");
#include "drivers/cuda/real_functions.def"
  return table;
}

}  // namespace theseus::cuda
