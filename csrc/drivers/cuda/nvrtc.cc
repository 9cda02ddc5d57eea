#include "drivers/cuda/nvrtc.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/env.h"
#include "base/fork.h"
#include "base/log.h"

namespace theseus::cuda {
namespace {

namespace fs = std::filesystem;

Status cuda_error(std::string message) { return {Code::UnhandledCudaError, std::move(message)}; }

// NVRTC opens its builtins by their bare name, which only finds them where they are loaded already.
void load_builtins(const fs::path& library) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(library.parent_path(), error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("libnvrtc-builtins") && name.find(".alt.") == std::string::npos)
      dlopen(entry.path().c_str(), RTLD_NOW | RTLD_LOCAL);
  }
}

std::string path_of(const void* function, const std::string& otherwise) {
  Dl_info info{};
  return dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : otherwise;
}

// Where CUDA's headers are beside an NVRTC: in its toolkit, or in the Python package next to its own.
std::string find_include(const fs::path& library) {
  std::error_code error;
  const fs::path folder = fs::weakly_canonical(library, error).parent_path();
  for (const fs::path& candidate :
       {folder / "../include", folder / "../../cuda_runtime/include", folder / "../targets/x86_64-linux/include"})
    if (fs::exists(candidate / "cuda_fp16.h", error)) return candidate.lexically_normal().string();
  return "";
}

}  // namespace

Result<std::unique_ptr<NvrtcCompiler>> NvrtcCompiler::open(const std::string& path) {
  if (path.find('/') != std::string::npos) load_builtins(path);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return cuda_error(why == nullptr ? path : why);
  }
  auto compiler = std::make_unique<NvrtcCompiler>();
  NvrtcTable& table = compiler->table_;
  const auto get = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
#define NVRTC(name) get(table.name, #name)
  if (!NVRTC(nvrtcVersion) || !NVRTC(nvrtcGetErrorString) || !NVRTC(nvrtcGetNumSupportedArchs) ||
      !NVRTC(nvrtcGetSupportedArchs) || !NVRTC(nvrtcCreateProgram) || !NVRTC(nvrtcDestroyProgram) ||
      !NVRTC(nvrtcCompileProgram) || !NVRTC(nvrtcGetProgramLogSize) || !NVRTC(nvrtcGetProgramLog) ||
      !NVRTC(nvrtcGetCUBINSize) || !NVRTC(nvrtcGetCUBIN) || !NVRTC(nvrtcGetPTXSize) || !NVRTC(nvrtcGetPTX))
    return cuda_error(path + " is no NVRTC, or older than CUDA 11.2");
#undef NVRTC
  int major = 0, minor = 0, count = 0;
  if (table.nvrtcVersion(&major, &minor) != 0 || table.nvrtcGetNumSupportedArchs(&count) != 0 || count <= 0)
    return cuda_error(path + " does not tell its version");
  compiler->architectures_.resize(count);
  table.nvrtcGetSupportedArchs(compiler->architectures_.data());
  std::sort(compiler->architectures_.begin(), compiler->architectures_.end());
  compiler->version_ = major * 1000 + minor * 10;
  compiler->path_ = path_of(reinterpret_cast<const void*>(table.nvrtcVersion), path);
  compiler->include_ = find_include(compiler->path_);
  return compiler;
}

Result<std::unique_ptr<NvrtcCompiler>> NvrtcCompiler::find(int driver_version) {
  if (const std::string wanted = settings::nvrtc(); !wanted.empty()) {
    Result<std::unique_ptr<NvrtcCompiler>> opened = open(wanted);
    if (!opened) return cuda_error("THESEUS_NVRTC cannot be used: " + opened.status().message());
    return opened;
  }
  std::unique_ptr<NvrtcCompiler> newer;
  for (const std::string& place : nvrtc_places()) {
    Result<std::unique_ptr<NvrtcCompiler>> opened = open(place);
    if (!opened) continue;
    // A driver loads what compilers of its own major version made.
    if ((*opened)->version_ / 1000 <= driver_version / 1000) return opened;
    if (newer == nullptr) newer = std::move(*opened);
  }
  if (newer != nullptr) {
    THESEUS_WARN("kernels are compiled by %s, which is newer than the driver; update the driver if they do not load",
                 newer->path_.c_str());
    return newer;
  }
  return none(driver_version);
}

Status NvrtcCompiler::none(int driver_version) {
  const int major = driver_version / 1000;
  return cuda_error(
      "kernels need NVRTC, and none was found in this process, its Python packages, the loader's path or "
      "a CUDA toolkit; install it (pip install " +
      std::string(major >= 13 ? "nvidia-cuda-nvrtc" : "nvidia-cuda-nvrtc-cu12") +
      "), or name libnvrtc.so in THESEUS_NVRTC");
}

Status NvrtcCompiler::error(const std::string& what, int result) const {
  const char* text = table_.nvrtcGetErrorString(result);
  return cuda_error("NVRTC cannot " + what + ": " + (text == nullptr ? "" : text) + " (" + path_ + ")");
}

int NvrtcCompiler::architecture(const DeviceInfo& device) const {
  const auto newer = std::upper_bound(architectures_.begin(), architectures_.end(), device.sm);
  return newer == architectures_.begin() ? architectures_.front() : *std::prev(newer);
}

std::vector<std::string> NvrtcCompiler::flags(const DeviceInfo& device) const {
  const int architecture = this->architecture(device);
  const std::string kind = architecture == device.sm ? "sm_" : "compute_";
  // As on the host, a product and a sum round one after the other, or ranks could differ in the last bit.
  std::vector<std::string> flags{"--std=c++17", "--fmad=false",
                                 "--gpu-architecture=" + kind + std::to_string(architecture)};
  // Without textures, surfaces and the runtime's library, none of which kernels use: 5 ms less to compile.
  constexpr int kKnowsMinimal = 12040;
  if (version_ >= kKnowsMinimal) flags.emplace_back("--minimal");
  if (!include_.empty()) flags.push_back("--include-path=" + include_);
  return flags;
}

std::string NvrtcCompiler::identity(const DeviceInfo& device) const {
  std::string text = "NVRTC " + std::to_string(version_);
  for (const std::string& flag : flags(device)) text += " " + flag;
  return text;
}

std::string NvrtcCompiler::log(void* program) const {
  size_t bytes = 0;
  if (table_.nvrtcGetProgramLogSize(program, &bytes) != 0 || bytes <= 1) return "";
  std::string text(bytes, '\0');
  table_.nvrtcGetProgramLog(program, text.data());
  text.resize(bytes - 1);
  return text;
}

Result<KernelImage> NvrtcCompiler::image(void* program, const KernelSource& source, bool cubin) const {
  size_t bytes = 0;
  int result = (cubin ? table_.nvrtcGetCUBINSize : table_.nvrtcGetPTXSize)(program, &bytes);
  KernelImage image(bytes);
  if (result == 0)
    result = (cubin ? table_.nvrtcGetCUBIN : table_.nvrtcGetPTX)(program, reinterpret_cast<char*>(image.data()));
  if (result != 0 || bytes == 0) return error("give out the image of " + source.name, result);
  return image;
}

Result<KernelImage> NvrtcCompiler::compile(const KernelSource& source, const DeviceInfo& device) {
  THESEUS_TRY(check_not_forked());
  if (device.sm < architectures_.front()) {
    return cuda_error(device.name + " (sm_" + std::to_string(device.sm) + ") is too old for " + path_ +
                      ", which starts at sm_" + std::to_string(architectures_.front()) +
                      "; name an older NVRTC in THESEUS_NVRTC");
  }
  std::vector<const char*> texts, names, options;
  for (const SourceText& header : source.headers) {
    texts.push_back(header.text.c_str());
    names.push_back(header.name.c_str());
  }
  std::vector<std::string> all = flags(device);
  all.insert(all.end(), source.options.begin(), source.options.end());
  for (const std::string& option : all) options.push_back(option.c_str());
  void* made = nullptr;
  if (const int result = table_.nvrtcCreateProgram(&made, source.text.c_str(), source.name.c_str(),
                                                   static_cast<int>(texts.size()), texts.data(), names.data());
      result != 0)
    return error("take " + source.name, result);
  const auto destroy = [this](void* program) { table_.nvrtcDestroyProgram(&program); };
  const std::unique_ptr<void, decltype(destroy)> program(made, destroy);
  const int result = table_.nvrtcCompileProgram(made, static_cast<int>(options.size()), options.data());
  constexpr int kCompilation = 6, kInvalidOption = 5;
  if (result == kCompilation || result == kInvalidOption)
    return Status::argument("cannot compile " + source.name + ": " + table_.nvrtcGetErrorString(result) + "\n" +
                            log(made));
  if (result != 0) return error("compile " + source.name + "\n" + log(made), result);
  return image(made, source, architecture(device) == device.sm);
}

}  // namespace theseus::cuda
