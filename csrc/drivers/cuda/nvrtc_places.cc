// Where NVRTC may be. Nothing is loaded here.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/cuda/nvrtc.h"
#include "drivers/loaded.h"

namespace theseus::cuda {
namespace {

namespace fs = std::filesystem;

// "libnvrtc.so.12", and "libnvrtc-672ee683.so.11.2" as older PyTorch wheels have it; not its builtins or twins.
bool is_nvrtc(const std::string& name) {
  return name.starts_with("libnvrtc") && !name.starts_with("libnvrtc-builtins") &&
         name.find(".alt.") == std::string::npos && name.find(".so") != std::string::npos;
}

void add_folder(const fs::path& folder, std::vector<std::string>& places) {
  std::vector<std::string> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (is_nvrtc(entry.path().filename().string())) found.push_back(entry.path().string());
  // Newest first; of one library's names any will do.
  std::sort(found.rbegin(), found.rend());
  places.insert(places.end(), found.begin(), found.end());
}

}  // namespace

std::vector<std::string> nvrtc_places() {
  const Loaded loaded = loaded_libraries();
  std::vector<std::string> places;
  for (const fs::path& library : loaded.libraries)
    if (is_nvrtc(library.filename().string())) places.push_back(library.string());
  for (const fs::path& packages : loaded.packages)
    for (const char* folder :
         {"nvidia/cuda_nvrtc/lib", "nvidia/cu13/lib", "nvidia/cu12/lib", "torch/lib", "cupy/.data/lib"})
      add_folder(packages / folder, places);
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"}) places.emplace_back(name);
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"}) {
    const char* root = std::getenv(variable);
    if (root == nullptr || *root == '\0') continue;
    add_folder(fs::path(root) / "lib64", places);
    add_folder(fs::path(root) / "lib", places);
  }
  add_folder("/usr/local/cuda/lib64", places);
  return places;
}

}  // namespace theseus::cuda
