// A table of libcuda's functions over an emulator: what RealDriver makes of them can be tested without a GPU. Contexts
// are kept as CUDA keeps them: a stack for each thread, and an error for whatever is called without one.
#pragma once

#include <cstring>
#include <vector>

#include "drivers/cuda/emu.h"
#include "drivers/cuda/real_table.h"

namespace theseus::cuda::fake {

inline constexpr CUresult kInvalidValue = 1, kUnknown = 999;

// Never destroyed, as a driver is not.
inline Emulator& device() {
  static Emulator& emulator = *new Emulator([] {
    EmulatorOptions options;
    options.memory_bytes = 64 << 20;
    return options;
  }());
  return emulator;
}

// Devices with a context, plus one; a device's context is its place in here.
inline thread_local std::vector<CUcontext> stack;
inline thread_local int capture_mode = 0;
inline std::atomic<int> retained[64];

inline CUcontext context_of(int ordinal) { return reinterpret_cast<CUcontext>(static_cast<intptr_t>(ordinal) + 1); }
inline int current() { return stack.empty() ? -1 : static_cast<int>(reinterpret_cast<intptr_t>(stack.back())) - 1; }

inline CUresult code(const Status& status) {
  if (status.ok()) return kCudaSuccess;
  if (status.message().find("out of memory") != std::string::npos) return kCudaOutOfMemory;
  return status.code() == Code::InvalidArgument ? kInvalidValue : kUnknown;
}
// Stores a result where there is one.
template <class T, class Out>
CUresult give(Result<T> result, Out* out) {
  if (result) *out = (Out)(*result);
  return code(result.status());
}
inline CUresult answer(const Result<bool>& done) {
  return !done ? code(done.status()) : *done ? kCudaSuccess : kCudaNotReady;
}

inline void* at(CUdeviceptr address) { return reinterpret_cast<void*>(address); }
inline Stream of(CUstream stream) { return reinterpret_cast<Stream>(stream); }
inline Event of(CUevent event) { return reinterpret_cast<Event>(event); }

// What follows needs a context.
#define FAKE_CURRENT             \
  const int ordinal = current(); \
  if (ordinal < 0) return kCudaInvalidContext

inline void add_devices(DriverTable& table) {
  table.cuGetErrorName = [](CUresult, const char** name) { return *name = "CUDA_ERROR_FAKE", 0; };
  table.cuGetErrorString = [](CUresult, const char** text) { return *text = "a fake error", 0; };
  table.cuDeviceGetCount = [](int* count) { return *count = device().device_count(), 0; };
  table.cuDeviceGetName = [](char* name, int bytes, CUdevice) { return std::strncpy(name, "fake", bytes), 0; };
  table.cuDeviceGetPCIBusId = [](char* name, int bytes, CUdevice) { return std::strncpy(name, "0000:00", bytes), 0; };
  table.cuDeviceGetUuid = [](CUuuid* uuid, CUdevice ordinal) { return uuid->bytes[0] = static_cast<char>(ordinal), 0; };
  table.cuDeviceTotalMem = [](size_t* bytes, CUdevice) { return *bytes = 64 << 20, 0; };
  table.cuDeviceGetAttribute = [](int* value, int number, CUdevice) { return *value = number, 0; };
  table.cuDeviceCanAccessPeer = [](int* can, CUdevice a, CUdevice b) {
    return give(device().can_access_peer(a, b), can);
  };
  table.cuDevicePrimaryCtxRetain = [](CUcontext* context, CUdevice ordinal) {
    ++retained[ordinal];
    return *context = context_of(ordinal), 0;
  };
  table.cuDevicePrimaryCtxRelease = [](CUdevice ordinal) { return --retained[ordinal], 0; };
  table.cuDevicePrimaryCtxGetState = [](CUdevice ordinal, unsigned* flags, int* active) {
    *flags = 0;
    return *active = retained[ordinal] > 0, 0;
  };
  table.cuCtxPushCurrent = [](CUcontext context) { return stack.push_back(context), 0; };
  table.cuCtxPopCurrent = [](CUcontext* context) { return *context = stack.back(), stack.pop_back(), 0; };
  table.cuCtxSetCurrent = [](CUcontext context) {
    if (!stack.empty()) stack.pop_back();
    return stack.push_back(context), 0;
  };
  table.cuCtxGetDevice = [](CUdevice* out) -> CUresult {
    FAKE_CURRENT;
    return *out = ordinal, 0;
  };
  table.cuCtxEnablePeerAccess = [](CUcontext, unsigned) {
    return static_cast<CUresult>(kCudaPeerAccessAlreadyEnabled);
  };
  table.cuCtxGetStreamPriorityRange = [](int* lowest, int* highest) { return *lowest = 0, *highest = -5, 0; };
  table.cuThreadExchangeStreamCaptureMode = [](int* mode) { return std::swap(capture_mode, *mode), 0; };
}

inline CUresult pointer_attributes(unsigned count, int* numbers, void** values, CUdeviceptr address) {
  const PointerInfo info = *device().pointer_info(at(address));
  const bool managed = info.kind == PointerKind::Managed;
  const bool on_device = managed || info.kind == PointerKind::Device;
  for (unsigned i = 0; i < count; ++i) {
    const uint64_t value = numbers[i] == 2    ? (on_device                          ? 2
                                                 : info.kind == PointerKind::Pinned ? 1
                                                                                    : 0)
                           : numbers[i] == 8  ? managed
                           : numbers[i] == 9  ? static_cast<uint64_t>(info.ordinal)
                           : numbers[i] == 10 ? info.exportable
                           : numbers[i] == 11 ? reinterpret_cast<uint64_t>(info.base)
                           : numbers[i] == 12 ? info.bytes
                                              : 0;
    std::memcpy(values[i], &value, numbers[i] >= 11 ? 8 : 4);
  }
  return current() < 0 ? kCudaInvalidContext : kCudaSuccess;
}

inline void add_memory(DriverTable& table) {
  table.cuMemGetInfo = [](size_t* free, size_t* total) { return *free = 1000, *total = 64 << 20, 0; };
  table.cuMemAlloc = [](CUdeviceptr* out, size_t bytes) -> CUresult {
    FAKE_CURRENT;
    return give(device().allocate(ordinal, bytes), out);
  };
  table.cuMemFree = [](CUdeviceptr memory) -> CUresult {
    FAKE_CURRENT;
    return code(device().release(ordinal, at(memory)));
  };
  table.cuMemHostAlloc = [](void** out, size_t bytes, unsigned flags) -> CUresult {
    FAKE_CURRENT;
    return flags == 3 ? give(device().allocate_pinned(bytes), out) : kInvalidValue + ordinal;
  };
  table.cuMemFreeHost = [](void* memory) { return code(device().release_pinned(memory)); };
  table.cuMemHostRegister = [](void* memory, size_t bytes, unsigned) {
    return code(device().register_host(memory, bytes));
  };
  table.cuMemHostUnregister = [](void* memory) { return code(device().unregister_host(memory)); };
  table.cuMemHostGetDevicePointer = [](CUdeviceptr* out, void* memory, unsigned) -> CUresult {
    FAKE_CURRENT;
    return give(device().device_address(ordinal, memory), out);
  };
  table.cuPointerGetAttributes = &pointer_attributes;
  table.cuIpcGetMemHandle = [](CUipcMemHandle* out, CUdeviceptr memory) {
    const Result<IpcHandle> handle = device().export_memory(at(memory));
    if (handle) std::memcpy(out->reserved, handle->bytes.data(), 64);
    return code(handle.status());
  };
  table.cuIpcOpenMemHandle = [](CUdeviceptr* out, CUipcMemHandle raw, unsigned) -> CUresult {
    FAKE_CURRENT;
    IpcHandle handle;
    std::memcpy(handle.bytes.data(), raw.reserved, 64);
    return give(device().import_memory(ordinal, handle), out);
  };
  table.cuIpcCloseMemHandle = [](CUdeviceptr memory) -> CUresult {
    FAKE_CURRENT;
    return code(device().release_import(ordinal, at(memory)));
  };
}

inline void add_work(DriverTable& table) {
  table.cuMemcpyAsync = [](CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) -> CUresult {
    FAKE_CURRENT;
    return code(device().copy(ordinal, at(to), at(from), bytes, of(stream)));
  };
  table.cuMemsetD8Async = [](CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) -> CUresult {
    FAKE_CURRENT;
    return code(device().fill(ordinal, at(to), value, bytes, of(stream)));
  };
  table.cuLaunchHostFunc = [](CUstream stream, void (*call)(void*), void* argument) -> CUresult {
    FAKE_CURRENT;
    return code(device().call_host(ordinal, of(stream), call, argument));
  };
  table.cuStreamCreateWithPriority = [](CUstream* out, unsigned flags, int priority) -> CUresult {
    FAKE_CURRENT;
    if (flags != 1 || priority > 0 || priority < -5) return kInvalidValue;
    return give(device().create_stream(ordinal), out);
  };
  table.cuStreamDestroy = [](CUstream stream) -> CUresult {
    FAKE_CURRENT;
    return code(device().destroy_stream(ordinal, of(stream)));
  };
  table.cuStreamSynchronize = [](CUstream stream) -> CUresult {
    FAKE_CURRENT;
    return code(device().synchronize(ordinal, of(stream)));
  };
  table.cuStreamQuery = [](CUstream stream) -> CUresult {
    FAKE_CURRENT;
    return answer(device().query(ordinal, of(stream)));
  };
  table.cuStreamWaitEvent = [](CUstream stream, CUevent event, unsigned) -> CUresult {
    FAKE_CURRENT;
    return code(device().wait(ordinal, of(stream), of(event)));
  };
  table.cuStreamGetCaptureInfo = [](CUstream stream, int* status, unsigned long long* id, void**, const void***,
                                    size_t*) -> CUresult {
    FAKE_CURRENT;
    const Result<Capture> capture = device().capture(ordinal, of(stream));
    if (capture) *status = static_cast<int>(capture->state), *id = capture->id;
    return code(capture.status());
  };
}

inline void add_events(DriverTable& table) {
  table.cuEventCreate = [](CUevent* out, unsigned flags) -> CUresult {
    FAKE_CURRENT;
    return give(device().create_event(ordinal, (flags & 2) == 0), out);
  };
  table.cuEventDestroy = [](CUevent event) -> CUresult {
    FAKE_CURRENT;
    return code(device().destroy_event(ordinal, of(event)));
  };
  table.cuEventRecord = [](CUevent event, CUstream stream) -> CUresult {
    FAKE_CURRENT;
    return code(device().record(ordinal, of(event), of(stream)));
  };
  table.cuEventQuery = [](CUevent event) -> CUresult {
    FAKE_CURRENT;
    return answer(device().query(ordinal, of(event)));
  };
  table.cuEventSynchronize = [](CUevent event) -> CUresult {
    FAKE_CURRENT;
    return code(device().synchronize(ordinal, of(event)));
  };
  table.cuEventElapsedTime = [](float* out, CUevent from, CUevent to) -> CUresult {
    FAKE_CURRENT;
    return give(device().elapsed(ordinal, of(from), of(to)), out);
  };
}

#undef FAKE_CURRENT

// Without modules and launches: what NVRTC makes cannot run here.
inline DriverTable table() {
  DriverTable table;
  table.version = 12040;
  add_devices(table);
  add_memory(table);
  add_work(table);
  add_events(table);
  return table;
}

}  // namespace theseus::cuda::fake
