// The real driver's devices and memory.
#include "drivers/cuda/real.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/fork.h"
#include "drivers/cuda/real_scope.h"

namespace theseus::cuda {
namespace {

// CUdevice_attribute
constexpr int kMaxThreads = 1, kMultiprocessors = 16, kMajor = 75, kMinor = 76, kCooperative = 95, kMaxShared = 97;
// CUpointer_attribute
constexpr int kMemoryType = 2, kIsManaged = 8, kOrdinal = 9, kIpcCapable = 10, kRangeStart = 11, kRangeSize = 12;
constexpr unsigned kHostMemory = 1, kDeviceMemory = 2;
// CU_MEMHOSTALLOC_* and CU_MEMHOSTREGISTER_*: for all contexts, and at an address of devices
constexpr unsigned kPortableMapped = 3;
constexpr unsigned kLazyPeerAccess = 1;

std::array<uint8_t, 64> bytes_of(const CUipcMemHandle& handle) {
  std::array<uint8_t, 64> bytes;
  std::memcpy(bytes.data(), handle.reserved, bytes.size());
  return bytes;
}

}  // namespace

Result<std::unique_ptr<Driver>> open_real_driver(const std::string& library) {
  THESEUS_TRY(check_not_forked());
  Result<DriverTable> table = load_driver(library);
  if (!table) return table.status();
  int devices = 0;
  const CUresult counted = table->cuDeviceGetCount(&devices);
  if (counted != kCudaSuccess) return table->error("cannot count NVIDIA GPUs", counted);
  if (devices == 0)
    return Status(Code::UnhandledCudaError, "no NVIDIA GPU is visible: CUDA_VISIBLE_DEVICES hides all of them");
  return std::unique_ptr<Driver>(new RealDriver(*table, devices));
}

RealDriver::RealDriver(const DriverTable& table, int devices) : table_(table), contexts_(devices) { arm_fork_guard(); }

RealDriver::~RealDriver() {
  if (is_forked_child()) return;
  for (size_t device = 0; device < contexts_.size(); ++device)
    if (contexts_[device] != nullptr) table_.cuDevicePrimaryCtxRelease(static_cast<CUdevice>(device));
}

Status RealDriver::check(int device) const {
  THESEUS_TRY(check_not_forked());
  if (device >= 0 && device < device_count()) return {};
  return Status::argument("there is no device " + std::to_string(device) + "; this process sees " +
                          std::to_string(device_count()));
}

Result<CUcontext> RealDriver::context(int device) {
  THESEUS_TRY(check(device));
  std::lock_guard lock(mutex_);
  CUcontext& context = contexts_[device];
  if (context == nullptr)
    THESEUS_TRY(result("make a context on the device", table_.cuDevicePrimaryCtxRetain(&context, device)));
  return context;
}

Result<int> RealDriver::attribute(int device, int number) {
  int value = 0;
  THESEUS_TRY(result("ask for a device's properties", table_.cuDeviceGetAttribute(&value, number, device)));
  return value;
}

Result<DeviceInfo> RealDriver::device_info(int device) {
  THESEUS_TRY(check(device));
  DeviceInfo info;
  char name[256] = "", pci[64] = "";
  CUuuid uuid{};
  size_t memory = 0;
  constexpr const char* what = "ask for a device's properties";
  THESEUS_TRY(result(what, table_.cuDeviceGetName(name, sizeof name - 1, device)));
  THESEUS_TRY(result(what, table_.cuDeviceGetPCIBusId(pci, sizeof pci - 1, device)));
  THESEUS_TRY(result(what, table_.cuDeviceGetUuid(&uuid, device)));
  THESEUS_TRY(result(what, table_.cuDeviceTotalMem(&memory, device)));
  int major = 0, minor = 0, cooperative = 0;
  for (const auto& [number, value] : {std::pair{kMajor, &major},
                                      {kMinor, &minor},
                                      {kCooperative, &cooperative},
                                      {kMultiprocessors, &info.multiprocessors},
                                      {kMaxThreads, &info.max_threads},
                                      {kMaxShared, &info.max_shared_bytes}}) {
    Result<int> answer = attribute(device, number);
    if (!answer) return answer.status();
    *value = *answer;
  }
  info.ordinal = device;
  info.name = name;
  info.pci = pci;
  info.sm = major * 10 + minor;
  info.memory_bytes = memory;
  info.cooperative = cooperative != 0;
  std::memcpy(info.uuid.data(), uuid.bytes, info.uuid.size());
  return info;
}

Result<int> RealDriver::current_device() {
  THESEUS_TRY(check_not_forked());
  CUdevice device = 0;
  const CUresult answer = table_.cuCtxGetDevice(&device);
  if (answer == kCudaInvalidContext) return 0;
  THESEUS_TRY(result("ask for the current device", answer));
  return device;
}

Status RealDriver::set_current_device(int device) {
  Result<CUcontext> chosen = context(device);
  if (!chosen) return chosen.status();
  return result("choose a device", table_.cuCtxSetCurrent(*chosen));
}

int RealDriver::device_in_use() {
  CUdevice current = 0;
  if (table_.cuCtxGetDevice(&current) == kCudaSuccess) return current;
  for (int device = 0; device < device_count(); ++device) {
    unsigned flags = 0;
    int active = 0;
    if (table_.cuDevicePrimaryCtxGetState(device, &flags, &active) == kCudaSuccess && active != 0) return device;
  }
  return -1;
}

Result<bool> RealDriver::can_access_peer(int device, int peer) {
  THESEUS_TRY(check(device));
  THESEUS_TRY(check(peer));
  if (device == peer) return true;
  int can = 0;
  THESEUS_TRY(result("ask for peer access", table_.cuDeviceCanAccessPeer(&can, device, peer)));
  return can != 0;
}

Status RealDriver::enable_peer(int device, int peer) {
  Result<bool> can = can_access_peer(device, peer);
  if (!can) return can.status();
  if (device == peer) return {};
  if (!*can) {
    return {Code::UnhandledCudaError, "peer access refused: device " + std::to_string(device) +
                                          " cannot reach the memory of device " + std::to_string(peer) +
                                          " ('nvidia-smi topo -p2p r' shows why); choose devices that do, or "
                                          "THESEUS_FALLBACK=all, which leaves it to the real NCCL"};
  }
  Result<CUcontext> peers = context(peer);
  if (!peers) return peers.status();
  return call(device, "enable peer access", [&] {
    const CUresult answer = table_.cuCtxEnablePeerAccess(*peers, 0);
    return answer == kCudaPeerAccessAlreadyEnabled ? kCudaSuccess : answer;
  });
}

Result<void*> RealDriver::allocate(int device, size_t bytes) {
  if (bytes == 0) return Status::argument("cannot allocate 0 bytes of device memory");
  CUdeviceptr memory = 0;
  size_t free = 0, total = 0;
  CUresult answer = kCudaSuccess;
  THESEUS_TRY(call(device, "ask for free memory", [&] {
    answer = table_.cuMemAlloc(&memory, bytes);
    return answer == kCudaOutOfMemory ? table_.cuMemGetInfo(&free, &total) : kCudaSuccess;
  }));
  if (answer == kCudaSuccess) return pointer(memory);
  if (answer != kCudaOutOfMemory) return result("allocate device memory", answer);
  return Status(Code::UnhandledCudaError, "out of memory: " + std::to_string(bytes) + " bytes asked for on device " +
                                              std::to_string(device) + ", " + std::to_string(free) + " of " +
                                              std::to_string(total) +
                                              " free; nvidia-smi shows who holds the rest, and THESEUS_SLOT_BYTES "
                                              "lowers what a connection takes");
}

Status RealDriver::release(int device, void* memory) {
  if (memory == nullptr) return check(device);
  return call(device, "release device memory", table_.cuMemFree, address(memory));
}

Result<void*> RealDriver::allocate_pinned(size_t bytes) {
  if (bytes == 0) return Status::argument("cannot allocate 0 bytes of pinned memory");
  void* memory = nullptr;
  THESEUS_TRY(call(std::max(device_in_use(), 0), "allocate pinned memory", table_.cuMemHostAlloc, &memory, bytes,
                   kPortableMapped));
  return memory;
}

Status RealDriver::release_pinned(void* memory) {
  if (memory == nullptr) return {};
  return call(std::max(device_in_use(), 0), "release pinned memory", table_.cuMemFreeHost, memory);
}

Status RealDriver::register_host(void* memory, size_t bytes) {
  if (memory == nullptr || bytes == 0) return Status::argument("cannot register host memory: it is empty");
  return call(std::max(device_in_use(), 0), "pin host memory", table_.cuMemHostRegister, memory, bytes,
              kPortableMapped);
}

Status RealDriver::unregister_host(void* memory) {
  return call(std::max(device_in_use(), 0), "let pinned host memory go", table_.cuMemHostUnregister, memory);
}

Result<void*> RealDriver::device_address(int device, void* pinned) {
  CUdeviceptr seen = 0;
  THESEUS_TRY(call(device, "find host memory on the device", table_.cuMemHostGetDevicePointer, &seen, pinned, 0U));
  return pointer(seen);
}

Result<PointerInfo> RealDriver::pointer_info(const void* of) {
  THESEUS_TRY(check_not_forked());
  unsigned type = 0, managed = 0, exportable = 0;
  int ordinal = -1;
  CUdeviceptr start = 0;
  size_t size = 0;
  int numbers[] = {kMemoryType, kIsManaged, kOrdinal, kIpcCapable, kRangeStart, kRangeSize};
  void* values[] = {&type, &managed, &ordinal, &exportable, &start, &size};
  const int device = device_in_use();
  if (of == nullptr || device < 0) return PointerInfo{};  // without a context nothing can be the driver's
  THESEUS_TRY(call(device, "ask what a pointer is", table_.cuPointerGetAttributes, 6U, numbers, values, address(of)));
  if (type != kHostMemory && type != kDeviceMemory) return PointerInfo{};
  PointerInfo info{type == kHostMemory ? PointerKind::Pinned : PointerKind::Device, ordinal, pointer(start), size,
                   type == kDeviceMemory && managed == 0 && exportable != 0};
  if (managed != 0) info.kind = PointerKind::Managed;
  std::lock_guard lock(mutex_);
  for (const auto& [key, import] : imports_) info.exportable = info.exportable && import.base != info.base;
  return info;
}

Result<IpcHandle> RealDriver::export_memory(const void* memory) {
  Result<PointerInfo> info = pointer_info(memory);
  if (!info) return info.status();
  if (!info->exportable) {
    return Status::argument(
        "cannot share this memory with other processes: it is not device memory of this process that CUDA IPC can "
        "export (PyTorch: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False)");
  }
  CUipcMemHandle handle{};
  THESEUS_TRY(call(info->ordinal, "export device memory", table_.cuIpcGetMemHandle, &handle, address(info->base)));
  std::lock_guard lock(mutex_);
  return IpcHandle{*exported_.insert(bytes_of(handle)).first};
}

Result<void*> RealDriver::import_memory(int device, const IpcHandle& handle) {
  THESEUS_TRY(check(device));
  const ImportKey key{device, handle.bytes};
  std::unique_lock lock(mutex_);
  if (exported_.count(handle.bytes) > 0)
    return Status::usage("device memory of this very process needs no import: use its pointer");
  if (const auto known = imports_.find(key); known != imports_.end()) {
    ++known->second.count;
    return known->second.base;
  }
  lock.unlock();
  CUipcMemHandle raw;
  std::memcpy(raw.reserved, handle.bytes.data(), sizeof raw.reserved);
  CUdeviceptr base = 0;
  THESEUS_TRY(call(
      device,
      "import device memory of another process (it must live, on this machine, and the devices must reach each other)",
      table_.cuIpcOpenMemHandle, &base, raw, kLazyPeerAccess));
  lock.lock();
  imports_.emplace(key, Import{pointer(base), 1});
  return pointer(base);
}

Status RealDriver::release_import(int device, void* base) {
  THESEUS_TRY(check(device));
  if (base == nullptr) return {};
  {
    std::lock_guard lock(mutex_);
    const auto found = std::find_if(imports_.begin(), imports_.end(), [&](const auto& entry) {
      return entry.first.first == device && entry.second.base == base;
    });
    if (found == imports_.end())
      return Status::argument("this memory did not come from import_memory(), or was released before");
    if (--found->second.count > 0) return {};
    imports_.erase(found);
  }
  return call(device, "release imported memory", table_.cuIpcCloseMemHandle, address(base));
}

Result<KernelCompiler*> RealDriver::compiler() {
  THESEUS_TRY(check_not_forked());
  std::lock_guard lock(mutex_);
  if (compiler_ == nullptr) {
    Result<std::unique_ptr<NvrtcCompiler>> found = NvrtcCompiler::find(table_.version);
    if (!found) return found.status();
    compiler_ = std::move(*found);
  }
  return static_cast<KernelCompiler*>(compiler_.get());
}

}  // namespace theseus::cuda
