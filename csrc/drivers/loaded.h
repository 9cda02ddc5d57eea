// What this process has loaded so far, and where Python packages of it lie: where libraries of others are looked for.
#pragma once

#include <filesystem>
#include <vector>

namespace theseus {

struct Loaded {
  std::vector<std::filesystem::path> libraries;
  // site-packages and dist-packages folders that a library was loaded from, each once.
  std::vector<std::filesystem::path> packages;
};

// In the order of loading. Nothing is loaded here, and no file is looked at.
Loaded loaded_libraries();

}  // namespace theseus
