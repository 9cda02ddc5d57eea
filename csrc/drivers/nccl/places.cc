// Where the real NCCL may be. Nothing is loaded here.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "drivers/loaded.h"
#include "drivers/nccl/library.h"

namespace theseus::nccl {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "libnccl.so.2";

class Places {
 public:
  // Files only; one that two ways lead to is listed once.
  void add(const fs::path& file) {
    std::error_code error;
    const fs::path real = fs::canonical(file, error);
    if (error || !fs::is_regular_file(real, error)) return;
    if (std::find(known_.begin(), known_.end(), real) != known_.end()) return;
    known_.push_back(real);
    files_.push_back(file.string());
  }

  std::vector<std::string> take() { return std::move(files_); }

 private:
  std::vector<fs::path> known_;
  std::vector<std::string> files_;
};

}  // namespace

std::vector<std::string> nccl_places() {
  const Loaded loaded = loaded_libraries();
  Places places;
  for (const fs::path& library : loaded.libraries)
    if (library.filename() == kName) places.add(library);
  for (const fs::path& packages : loaded.packages) places.add(packages / "nvidia/nccl/lib" / kName);
  if (const char* paths = std::getenv("LD_LIBRARY_PATH"); paths != nullptr) {
    std::istringstream folders(paths);
    for (std::string folder; std::getline(folders, folder, ':');)
      if (!folder.empty()) places.add(fs::path(folder) / kName);
  }
  for (const char* variable : {"NCCL_HOME", "CONDA_PREFIX", "CUDA_HOME"}) {
    const char* root = std::getenv(variable);
    if (root == nullptr || *root == '\0') continue;
    places.add(fs::path(root) / "lib" / kName);
    places.add(fs::path(root) / "lib64" / kName);
  }
  for (const char* folder : {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
                             "/usr/local/lib", "/usr/local/cuda/lib64"})
    places.add(fs::path(folder) / kName);
  return places.take();
}

}  // namespace theseus::nccl
