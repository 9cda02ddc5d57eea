// Where NVRTC may be. Nothing is loaded here.
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/cuda/nvrtc.h"

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

struct Loaded {
  std::vector<std::string> nvrtc;
  std::vector<fs::path> packages;  // site-packages folders that this process loaded anything from
};

int look_at(dl_phdr_info* library, size_t, void* result) {
  auto* loaded = static_cast<Loaded*>(result);
  const fs::path path(library->dlpi_name);
  if (is_nvrtc(path.filename().string())) loaded->nvrtc.push_back(path.string());
  fs::path folder;
  for (const fs::path& part : path) {
    folder /= part;
    if ((part == "site-packages" || part == "dist-packages") &&
        std::find(loaded->packages.begin(), loaded->packages.end(), folder) == loaded->packages.end())
      loaded->packages.push_back(folder);
  }
  return 0;
}

}  // namespace

std::vector<std::string> nvrtc_places() {
  Loaded loaded;
  dl_iterate_phdr(&look_at, &loaded);
  std::vector<std::string> places = loaded.nvrtc;
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
