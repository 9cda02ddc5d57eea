#include "drivers/nccl/library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <utility>

#include "base/env.h"
#include "base/log.h"

namespace theseus::nccl {
namespace {

constexpr int kOldest = 21602;
constexpr int kNextMajor = 30000;

// Its own calls among its functions must reach its own: ours stand first in the process where they are preloaded. The
// sanitizers' runtimes cannot live with that flag.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kOpenFlags = RTLD_NOW | RTLD_LOCAL;
#else
constexpr int kOpenFlags = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

// Ours, whatever the file is called and wherever it was copied to, stands on libtheseus.
bool is_ours(void* handle) {
  const link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return false;
  const char* strings = nullptr;
  for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry)
    if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(entry->d_un.d_ptr);
  for (const ElfW(Dyn)* entry = map->l_ld; strings != nullptr && entry->d_tag != DT_NULL; ++entry)
    if (entry->d_tag == DT_NEEDED && std::strncmp(strings + entry->d_un.d_val, "libtheseus.so", 13) == 0) return true;
  return false;
}

Result<int> check(void* handle, const std::string& path) {
  if (is_ours(handle)) return Status::usage(path + " is Theseus's own libnccl, not NVIDIA's");
  const auto get_version = reinterpret_cast<int (*)(int*)>(dlsym(handle, "ncclGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0) return Status::usage(path + " is no NCCL");
  if (version < kOldest || version >= kNextMajor) {
    return Status::usage(path + " is NCCL " + version_text(version) + "; 2.16.2 to any later 2.x is needed");
  }
  return version;
}

}  // namespace

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Result<Library> Library::open(const std::string& path) {
  // A bare name means what is loaded already: ours.
  if (path.find('/') == std::string::npos) return Status::usage(path + " is no path: it must hold a /");
  void* handle = dlopen(path.c_str(), kOpenFlags);
  if (handle == nullptr) {
    const char* why = dlerror();
    return Status::system(why == nullptr ? path + " does not load" : why);
  }
  const Result<int> version = check(handle, path);
  if (!version.ok()) {
    dlclose(handle);
    return version.status();
  }
  return Library(handle, path, *version);
}

Result<Library> Library::find() {
  if (const std::string wanted = settings::nccl(); !wanted.empty()) {
    Result<Library> opened = open(wanted);
    if (opened.ok()) return opened;
    return Status(opened.status().code(), "THESEUS_NCCL cannot be used: " + opened.status().message());
  }
  for (const std::string& place : nccl_places()) {
    Result<Library> opened = open(place);
    if (opened.ok()) return opened;
    THESEUS_INFO(kLogInit, "passed over: %s", opened.status().message().c_str());
  }
  return Status::system(
      "the real NCCL was not found among the libraries of this process, its Python packages, LD_LIBRARY_PATH and the "
      "system's folders: install it (pip install nvidia-nccl-cu12, or -cu13), or name libnccl.so.2 in THESEUS_NCCL");
}

void* Library::function(const char* name) const { return dlsym(handle_, name); }

}  // namespace theseus::nccl
