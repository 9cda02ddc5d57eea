#include "drivers/loaded.h"

#include <link.h>

#include <algorithm>

namespace theseus {
namespace {

namespace fs = std::filesystem;

int look_at(dl_phdr_info* library, size_t, void* result) {
  auto* loaded = static_cast<Loaded*>(result);
  const fs::path path(library->dlpi_name);
  loaded->libraries.push_back(path);
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

Loaded loaded_libraries() {
  Loaded loaded;
  dl_iterate_phdr(&look_at, &loaded);
  return loaded;
}

}  // namespace theseus
