// Memory of the emulator's devices: memfd mappings, so that other processes of the same user can map them through
// /proc/PID/fd while the owner lives, and nothing is left once it is gone, however it went.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "drivers/cuda/api.h"

namespace theseus::cuda {

class EmuMemory {
 public:
  EmuMemory(int devices, uint64_t bytes_per_device) : used_(devices), limit_(bytes_per_device) {}
  EmuMemory(const EmuMemory&) = delete;
  EmuMemory& operator=(const EmuMemory&) = delete;
  ~EmuMemory();

  Result<void*> allocate(int device, size_t bytes);
  Result<void*> allocate_managed(int device, size_t bytes);
  // Of either kind.
  Status release(int device, void* memory);
  Result<void*> allocate_pinned(size_t bytes);
  Status release_pinned(void* memory);
  Status register_host(void* memory, size_t bytes);
  Status unregister_host(void* memory);

  PointerInfo find(const void* pointer);
  // InvalidArgument where [pointer, pointer + bytes) starts in memory of ours and ends outside.
  Status check_range(const void* pointer, size_t bytes);

  Result<IpcHandle> export_memory(const void* pointer);
  // The device that a handle's memory is on, in its process' counting; InvalidArgument for what is no handle of ours.
  static Result<int> exporter_device(const IpcHandle& handle);
  Result<void*> import_memory(int device, const IpcHandle& handle);
  Status release_import(int device, void* base);

 private:
  enum class Origin { Allocated, Managed, Pinned, Registered, Imported };
  struct Allocation {
    Origin origin;
    int device;
    uint64_t bytes;   // as asked for
    uint64_t mapped;  // whole pages; 0: not ours to unmap
    Fd file;          // of an exportable one
    uint64_t inode;   // what tells files apart on this machine while they live
    int imports;      // an Imported one goes with its last release
  };
  using Allocations = std::map<uintptr_t, Allocation>;

  Allocations::iterator containing(const void* pointer);
  Status remove(void* memory, Origin origin, int device, const char* maker);
  Status map_new(Allocation allocation, void** memory);
  Result<void*> allocate_as(Origin origin, int device, size_t bytes);

  std::mutex mutex_;
  Allocations allocations_;
  std::vector<uint64_t> used_;  // by device
  const uint64_t limit_;
};

}  // namespace theseus::cuda
