#include "transport/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

namespace theseus {
namespace {

struct Allocation {
  size_t bytes;
  int fd;
  uint64_t id;
};

struct Mapping {
  uint8_t* base;
  uint64_t bytes;
};

struct Registry {
  std::mutex mutex;
  std::map<uintptr_t, Allocation> own;          // by address
  std::unordered_map<uint64_t, Mapping> peers;  // by allocation id; base null: tried and failed
  SharedMemory::Fetch fetch;
  uint32_t process_tag = 0;
  uint32_t next = 1;
};

// Never destroyed: buffers may outlive static destructors.
Registry& registry() {
  static Registry& instance = *new Registry;
  return instance;
}

uint32_t tag_of(Registry& r) {
  while (r.process_tag == 0) {
    if (getrandom(&r.process_tag, sizeof r.process_tag, 0) != sizeof r.process_tag) r.process_tag = getpid();
  }
  return r.process_tag;
}

uint64_t new_id(Registry& r) { return uint64_t{tag_of(r)} << 32 | r.next++; }

Mapping map_descriptor(int fd) {
  struct stat info{};
  Mapping mapping{nullptr, 0};
  if (fstat(fd, &info) == 0 && info.st_size > 0) {
    void* base = mmap(nullptr, info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base != MAP_FAILED) mapping = {static_cast<uint8_t*>(base), static_cast<uint64_t>(info.st_size)};
  }
  close(fd);
  return mapping;
}

}  // namespace

Result<void*> SharedMemory::allocate(size_t bytes) {
  constexpr size_t page = 4096;
  const size_t size = (bytes + page - 1) / page * page + (bytes == 0 ? page : 0);
  if (size < bytes)
    return Status::argument("cannot allocate " + std::to_string(bytes) + " bytes: not an address space");
  const int fd = memfd_create("theseus-buffer", MFD_CLOEXEC);
  if (fd < 0) return Status::from_errno("cannot create a shared buffer (see ulimit -n)", errno);
  const int reserved = ftruncate(fd, static_cast<off_t>(size)) != 0 ? errno : posix_fallocate(fd, 0, size);
  void* base = reserved == 0 ? mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  if (base == MAP_FAILED) {
    const int error = reserved != 0 ? reserved : errno;
    close(fd);
    return Status::from_errno("no memory for a shared buffer of " + std::to_string(size) + " bytes", error);
  }
  madvise(base, size, MADV_HUGEPAGE);
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  r.own[reinterpret_cast<uintptr_t>(base)] = {size, fd, new_id(r)};
  return base;
}

Status SharedMemory::free(void* pointer) {
  if (pointer == nullptr) return {};
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto found = r.own.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == r.own.end())
    return Status::argument("this pointer did not come from ncclMemAlloc, or was freed already");
  munmap(pointer, found->second.bytes);
  close(found->second.fd);
  r.own.erase(found);
  return {};
}

SharedMemory::Span SharedMemory::find(const void* data, size_t bytes) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto address = reinterpret_cast<uintptr_t>(data);
  auto above = r.own.upper_bound(address);
  if (above == r.own.begin()) return {};
  const auto& [base, allocation] = *--above;
  if (address + bytes > base + allocation.bytes) return {};
  return {allocation.id, address - base};
}

void* SharedMemory::map_peer_writable(uint64_t id, uint64_t offset, uint64_t bytes) {
  Registry& r = registry();
  std::unique_lock lock(r.mutex);
  auto found = r.peers.find(id);
  if (found == r.peers.end()) {
    Fetch fetch = r.fetch;
    lock.unlock();
    const int fd = fetch ? fetch(id) : -1;
    const Mapping mapping = fd >= 0 ? map_descriptor(fd) : Mapping{nullptr, 0};
    lock.lock();
    found = r.peers.try_emplace(id, mapping).first;
  }
  const Mapping& mapping = found->second;
  if (mapping.base == nullptr || offset > mapping.bytes || bytes > mapping.bytes - offset) return nullptr;
  return mapping.base + offset;
}

const void* SharedMemory::map_peer(uint64_t id, uint64_t offset, uint64_t bytes) {
  return map_peer_writable(id, offset, bytes);
}

void SharedMemory::set_fetch(Fetch fetch) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  r.fetch = std::move(fetch);
}

uint32_t SharedMemory::process_tag() {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  return tag_of(r);
}

int SharedMemory::descriptor(uint64_t id) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  for (const auto& [base, allocation] : r.own) {
    if (allocation.id == id) return fcntl(allocation.fd, F_DUPFD_CLOEXEC, 0);
  }
  return -1;
}

}  // namespace theseus
