#include "drivers/cuda/emu_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace theseus::cuda {
namespace {

constexpr uint64_t kPage = 4096;
// New memory up to so much is filled with kPoison: whoever counts on zeros is found out. More would cost real memory.
constexpr uint64_t kPoisonBytes = 1 << 20;
constexpr int kPoison = 0xCD;

struct WireHandle {
  static constexpr uint32_t kMagic = 0x54454d55;  // "UMET"
  uint32_t magic;
  int32_t process;
  int32_t descriptor;
  int32_t device;
  uint64_t inode;
  uint64_t bytes;
  uint64_t mapped;
};
static_assert(sizeof(WireHandle) <= sizeof(IpcHandle::bytes));

WireHandle decode(const IpcHandle& handle) {
  WireHandle wire;
  std::memcpy(&wire, handle.bytes.data(), sizeof wire);
  return wire;
}

Status cuda_error(std::string message) { return {Code::UnhandledCudaError, std::move(message)}; }

std::string hex(const void* pointer) {
  char text[32];
  std::snprintf(text, sizeof text, "%p", pointer);
  return text;
}

}  // namespace

EmuMemory::~EmuMemory() {
  for (auto& [base, allocation] : allocations_)
    if (allocation.mapped != 0) munmap(reinterpret_cast<void*>(base), allocation.mapped);
}

EmuMemory::Allocations::iterator EmuMemory::containing(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return allocations_.end();
  const auto found = std::prev(after);
  return address - found->first < std::max<uint64_t>(found->second.bytes, 1) ? found : allocations_.end();
}

Status EmuMemory::map_new(Allocation allocation, void** memory) {
  const int descriptor = memfd_create("theseus-emu", MFD_CLOEXEC);
  if (descriptor < 0) return descriptor_error("the emulator cannot create device memory", errno);
  allocation.file = Fd(descriptor);
  struct stat info{};
  if (ftruncate(descriptor, static_cast<off_t>(allocation.mapped)) != 0 || fstat(descriptor, &info) != 0)
    return Status::from_errno("the emulator cannot size its device memory", errno);
  void* base = mmap(nullptr, allocation.mapped, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (base == MAP_FAILED) return Status::from_errno("the emulator cannot map its device memory", errno);
  std::memset(base, kPoison, std::min(allocation.mapped, kPoisonBytes));
  allocation.inode = info.st_ino;
  allocations_.emplace(reinterpret_cast<uintptr_t>(base), std::move(allocation));
  *memory = base;
  return {};
}

Result<void*> EmuMemory::allocate(int device, size_t bytes) { return allocate_as(Origin::Allocated, device, bytes); }
Result<void*> EmuMemory::allocate_managed(int device, size_t bytes) {
  return allocate_as(Origin::Managed, device, bytes);
}

Result<void*> EmuMemory::allocate_as(Origin origin, int device, size_t bytes) {
  if (bytes == 0) return Status::argument("cannot allocate 0 bytes of device memory");
  std::lock_guard lock(mutex_);
  if (bytes > limit_ - used_[device]) {
    return cuda_error("out of memory: " + std::to_string(bytes) + " bytes asked for on device " +
                      std::to_string(device) + ", " + std::to_string(limit_ - used_[device]) + " of " +
                      std::to_string(limit_) + " free; THESEUS_EMU_MEMORY gives it more");
  }
  const uint64_t mapped = (bytes + kPage - 1) / kPage * kPage;
  void* memory = nullptr;
  THESEUS_TRY(map_new({origin, device, bytes, mapped, Fd(), 0, 0}, &memory));
  used_[device] += bytes;
  return memory;
}

Result<void*> EmuMemory::allocate_pinned(size_t bytes) {
  if (bytes == 0) return Status::argument("cannot allocate 0 bytes of pinned memory");
  std::lock_guard lock(mutex_);
  const uint64_t mapped = (bytes + kPage - 1) / kPage * kPage;
  void* memory = nullptr;
  THESEUS_TRY(map_new({Origin::Pinned, 0, bytes, mapped, Fd(), 0, 0}, &memory));
  return memory;
}

Status EmuMemory::remove(void* memory, Origin origin, int device, const char* maker) {
  if (memory == nullptr) return {};
  std::lock_guard lock(mutex_);
  const auto found = allocations_.find(reinterpret_cast<uintptr_t>(memory));
  const bool managed =
      origin == Origin::Allocated && found != allocations_.end() && found->second.origin == Origin::Managed;
  if (found == allocations_.end() || (found->second.origin != origin && !managed))
    return Status::argument(hex(memory) + " did not come from " + maker + ", or was released before");
  Allocation& allocation = found->second;
  if (device >= 0 && allocation.device != device) {
    return Status::argument(hex(memory) + " is memory of device " + std::to_string(allocation.device) + ", not of " +
                            std::to_string(device));
  }
  if (origin == Origin::Imported && --allocation.imports > 0) return {};
  if (allocation.mapped != 0) munmap(memory, allocation.mapped);
  if (origin == Origin::Allocated) used_[allocation.device] -= allocation.bytes;
  allocations_.erase(found);
  return {};
}

Status EmuMemory::release(int device, void* memory) { return remove(memory, Origin::Allocated, device, "allocate()"); }
Status EmuMemory::release_pinned(void* memory) { return remove(memory, Origin::Pinned, -1, "allocate_pinned()"); }
Status EmuMemory::unregister_host(void* memory) { return remove(memory, Origin::Registered, -1, "register_host()"); }
Status EmuMemory::release_import(int device, void* base) {
  return remove(base, Origin::Imported, device, "import_memory()");
}

Status EmuMemory::register_host(void* memory, size_t bytes) {
  if (memory == nullptr || bytes == 0) return Status::argument("cannot register host memory: it is empty");
  std::lock_guard lock(mutex_);
  const auto start = reinterpret_cast<uintptr_t>(memory);
  const auto after = allocations_.lower_bound(start);
  if (containing(memory) != allocations_.end() || (after != allocations_.end() && after->first < start + bytes))
    return cuda_error("cannot register host memory at " + hex(memory) + ": part of it is registered already");
  allocations_.emplace(start, Allocation{Origin::Registered, 0, bytes, 0, Fd(), 0, 0});
  return {};
}

PointerInfo EmuMemory::find(const void* pointer) {
  std::lock_guard lock(mutex_);
  const auto found = containing(pointer);
  if (found == allocations_.end()) return {};
  const auto& [base, allocation] = *found;
  PointerKind kind = PointerKind::Pinned;
  if (allocation.origin == Origin::Allocated || allocation.origin == Origin::Imported) kind = PointerKind::Device;
  if (allocation.origin == Origin::Managed) kind = PointerKind::Managed;
  return {kind, allocation.device, reinterpret_cast<void*>(base), allocation.bytes,
          allocation.origin == Origin::Allocated};
}

Status EmuMemory::check_range(const void* pointer, size_t bytes) {
  const PointerInfo info = find(pointer);
  if (info.kind == PointerKind::Unregistered) return {};
  const uint64_t offset = static_cast<const char*>(pointer) - static_cast<const char*>(info.base);
  if (bytes <= info.bytes - offset) return {};
  return Status::argument(std::to_string(bytes) + " bytes at " + hex(pointer) +
                          " run past the end of an allocation of " + std::to_string(info.bytes) + " bytes at " +
                          hex(info.base));
}

Result<IpcHandle> EmuMemory::export_memory(const void* pointer) {
  std::lock_guard lock(mutex_);
  const auto found = containing(pointer);
  if (found == allocations_.end() || found->second.origin != Origin::Allocated) {
    return Status::argument("cannot share the memory at " + hex(pointer) +
                            " with other processes: it is not device memory that this process allocated");
  }
  const Allocation& allocation = found->second;
  const WireHandle wire{WireHandle::kMagic, getpid(),         allocation.file.get(), allocation.device,
                        allocation.inode,   allocation.bytes, allocation.mapped};
  IpcHandle handle;
  std::memcpy(handle.bytes.data(), &wire, sizeof wire);
  return handle;
}

Result<int> EmuMemory::exporter_device(const IpcHandle& handle) {
  const WireHandle wire = decode(handle);
  if (wire.magic != WireHandle::kMagic || wire.process <= 0 || wire.descriptor < 0 || wire.device < 0 ||
      wire.bytes == 0 || wire.mapped % kPage != 0 || wire.mapped < wire.bytes)
    return Status::argument("cannot import device memory: not a handle that export_memory() of the emulator made");
  return wire.device;
}

Result<void*> EmuMemory::import_memory(int device, const IpcHandle& handle) {
  if (Result<int> exporter = exporter_device(handle); !exporter) return exporter.status();
  const WireHandle wire = decode(handle);
  if (wire.process == getpid())
    return Status::usage("device memory of this very process needs no import: use its pointer");
  std::lock_guard lock(mutex_);
  for (auto& [base, allocation] : allocations_) {
    if (allocation.origin == Origin::Imported && allocation.inode == wire.inode && allocation.device == device) {
      ++allocation.imports;
      return reinterpret_cast<void*>(base);
    }
  }
  const std::string name = "device memory of process " + std::to_string(wire.process);
  const std::string path = "/proc/" + std::to_string(wire.process) + "/fd/" + std::to_string(wire.descriptor);
  const Fd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file) return Status::from_errno("cannot import " + name + " (it must live, and be of the same user)", errno);
  struct stat info{};
  if (fstat(file.get(), &info) != 0 || info.st_ino != wire.inode || static_cast<uint64_t>(info.st_size) != wire.mapped)
    return cuda_error("cannot import " + name + ": it was released since it was exported");
  void* base = mmap(nullptr, wire.mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (base == MAP_FAILED) return Status::from_errno("cannot map " + name, errno);
  allocations_.emplace(reinterpret_cast<uintptr_t>(base),
                       Allocation{Origin::Imported, device, wire.bytes, wire.mapped, Fd(), wire.inode, 1});
  return base;
}

}  // namespace theseus::cuda
