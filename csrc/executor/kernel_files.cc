#include "executor/kernel_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/env.h"
#include "base/fd.h"
#include "base/random.h"
#include "context/digest.h"

namespace theseus {
namespace {

constexpr uint64_t kMagic = 0x314c4e524b534854;  // "THSKRNL1"
// Above any kernel; what is larger was not written here.
constexpr uint64_t kLargestImage = 256 << 20;

struct Head {
  uint64_t magic;
  uint64_t key[2];  // two digests, as the file's name holds one only
  uint64_t bytes;
  uint64_t digest;  // of the image
};

uint64_t digest_of(std::string_view text, uint64_t seed) { return Digest().add(seed).add(text).value(); }

Head head_of(std::string_view key, std::string_view image) {
  return {kMagic, {digest_of(key, 1), digest_of(key, 2)}, image.size(), digest_of(image, 0)};
}

bool read_all(int fd, void* to, size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = read(fd, at, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool write_all(int fd, const void* from, size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = write(fd, at, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    at += put;
    bytes -= static_cast<size_t>(put);
  }
  return true;
}

}  // namespace

KernelFiles KernelFiles::of_settings() {
  const std::string set = settings::kernel_cache();
  if (set == "off") return KernelFiles("");
  if (!set.empty()) return KernelFiles(set);
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && cache[0] == '/') {
    return KernelFiles(std::string(cache) + "/theseus/kernels");
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') {
    return KernelFiles(std::string(home) + "/.cache/theseus/kernels");
  }
  return KernelFiles("");
}

std::string KernelFiles::path_of(std::string_view key) const {
  char name[40];
  (void)std::snprintf(name, sizeof name, "/%016llx%016llx", static_cast<unsigned long long>(digest_of(key, 3)),
                      static_cast<unsigned long long>(digest_of(key, 4)));
  return folder_ + name;
}

// An image is code that this process will run: only a file that this user alone may have written will do.
std::optional<std::string> KernelFiles::load(std::string_view key) const {
  if (folder_.empty()) return std::nullopt;
  const Fd fd(open(path_of(key).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat about;
  if (!fd.valid() || fstat(fd.get(), &about) != 0) return std::nullopt;
  if (!S_ISREG(about.st_mode) || about.st_uid != geteuid() || (about.st_mode & 022) != 0) return std::nullopt;
  Head head;
  if (!read_all(fd.get(), &head, sizeof head) || head.bytes > kLargestImage) return std::nullopt;
  if (static_cast<uint64_t>(about.st_size) != sizeof head + head.bytes) return std::nullopt;
  std::string image(head.bytes, '\0');
  if (!read_all(fd.get(), image.data(), image.size())) return std::nullopt;
  const Head right = head_of(key, image);
  if (std::memcmp(&head, &right, sizeof head) != 0) return std::nullopt;
  return image;
}

Status KernelFiles::store(std::string_view key, std::string_view image) const {
  if (folder_.empty()) return {};
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) return Status::system("cannot make the folder of compiled kernels " + folder_ + ": " + error.message());
  const std::string path = path_of(key);
  const std::string temporary = path + ".tmp" + std::to_string(random_u64());
  const Fd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid()) return Status::from_errno("cannot write a compiled kernel to " + temporary, errno);
  const Head head = head_of(key, image);
  const bool written = write_all(fd.get(), &head, sizeof head) && write_all(fd.get(), image.data(), image.size());
  if (written && rename(temporary.c_str(), path.c_str()) == 0) return {};
  const int why = errno;
  (void)unlink(temporary.c_str());
  return Status::from_errno("cannot write a compiled kernel to " + path, why);
}

}  // namespace theseus
