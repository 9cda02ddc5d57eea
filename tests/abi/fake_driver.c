/* A CUDA driver for tests on machines without a GPU: all of libcuda.so.1 that the library asks for (csrc/drivers/cuda/
 * real_functions.def), so that communicators come to be on "GPUs" (THESEUS_DEVICE=cuda). Memory is the process's own;
 * work on streams is done at once, in the calling thread; there are no kernels, and no memory of other processes. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kInvalidContext = 201, kNotSupported = 801 };
enum { kDevices = 4, kDepth = 16, kMost = 4096 };

typedef unsigned long long Address;
typedef struct { char bytes[16]; } Uuid;
typedef struct { char reserved[64]; } IpcHandle;

/* ---- Contexts: a stack for each thread; a device's is its number plus one */

static _Thread_local intptr_t stack[kDepth];
static _Thread_local int depth;

static int current(void) { return depth == 0 ? -1 : (int)stack[depth - 1] - 1; }

int cuInit(unsigned flags) { return (void)flags, kSuccess; }
int cuDriverGetVersion(int* version) { return *version = 12040, kSuccess; }
int cuGetErrorName(int error, const char** name) { return (void)error, *name = "CUDA_ERROR_FAKE", kSuccess; }
int cuGetErrorString(int error, const char** text) { return (void)error, *text = "a fake driver's error", kSuccess; }
int cuDeviceGetCount(int* count) { return *count = kDevices, kSuccess; }
int cuDeviceGetName(char* name, int bytes, int device) {
  return (void)device, strncpy(name, "fake GPU of the tests", (size_t)bytes), kSuccess;
}
int cuDeviceGetUuid_v2(Uuid* uuid, int device) { return memset(uuid, device + 1, sizeof *uuid), kSuccess; }
int cuDeviceGetPCIBusId(char* name, int bytes, int device) {
  return (void)device, strncpy(name, "0000:00:00.0", (size_t)bytes), kSuccess;
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) { return (void)device, *bytes = (size_t)1 << 30, kSuccess; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  return (void)device, *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 95 ? 1 : 1024, kSuccess;
}
int cuDeviceCanAccessPeer(int* can, int device, int peer) { return (void)device, (void)peer, *can = 1, kSuccess; }
int cuDevicePrimaryCtxRetain(void** context, int device) {
  return *context = (void*)(intptr_t)(device + 1), kSuccess;
}
int cuDevicePrimaryCtxRelease_v2(int device) { return (void)device, kSuccess; }
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  return (void)device, *flags = 0, *active = 1, kSuccess;
}
int cuCtxPushCurrent_v2(void* context) { return stack[depth++] = (intptr_t)context, kSuccess; }
int cuCtxPopCurrent_v2(void** context) { return *context = (void*)stack[--depth], kSuccess; }
int cuCtxSetCurrent(void* context) {
  if (depth == 0) depth = 1;
  return stack[depth - 1] = (intptr_t)context, kSuccess;
}
int cuCtxGetDevice(int* device) {
  if (current() < 0) return kInvalidContext;
  return *device = current(), kSuccess;
}
int cuCtxEnablePeerAccess(void* context, unsigned flags) { return (void)context, (void)flags, kSuccess; }
int cuCtxGetStreamPriorityRange(int* lowest, int* highest) { return *lowest = 0, *highest = -5, kSuccess; }
int cuThreadExchangeStreamCaptureMode(int* mode) { return (void)mode, kSuccess; }

/* ---- Memory */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct { char* start; size_t bytes; int device, pinned; } known[kMost];

static int add(void** out, size_t bytes, int pinned) {
  void* memory = NULL;
  if (bytes > (size_t)1 << 30 || posix_memalign(&memory, 4096, bytes) != 0) return kOutOfMemory;
  memset(memory, 0xA5, bytes);
  int result = kOutOfMemory;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < kMost && result != kSuccess; ++i) {
    if (known[i].start != NULL) continue;
    known[i].start = memory, known[i].bytes = bytes, known[i].device = current(), known[i].pinned = pinned;
    result = kSuccess;
  }
  pthread_mutex_unlock(&mutex);
  return *out = memory, result;
}
static int take(void* memory) {
  int result = kInvalidValue;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < kMost; ++i)
    if (memory != NULL && known[i].start == memory) known[i].start = NULL, result = kSuccess;
  pthread_mutex_unlock(&mutex);
  if (result == kSuccess) free(memory);
  return result;
}

int cuMemGetInfo_v2(size_t* left, size_t* total) { return *left = *total = (size_t)1 << 30, kSuccess; }
int cuMemAlloc_v2(Address* out, size_t bytes) { return add((void**)out, bytes, 0); }
int cuMemFree_v2(Address memory) { return take((void*)memory); }
int cuMemHostAlloc(void** out, size_t bytes, unsigned flags) { return (void)flags, add(out, bytes, 1); }
int cuMemFreeHost(void* memory) { return take(memory); }
int cuMemHostRegister_v2(void* memory, size_t bytes, unsigned flags) {
  return (void)memory, (void)bytes, (void)flags, kNotSupported;
}
int cuMemHostUnregister(void* memory) { return (void)memory, kNotSupported; }
int cuMemHostGetDevicePointer_v2(Address* out, void* memory, unsigned flags) {
  return (void)flags, *out = (Address)memory, kSuccess;
}
/* As csrc/drivers/cuda/real.cc asks: type, managed, ordinal, can be shared, start, size. */
int cuPointerGetAttributes(unsigned count, int* numbers, void** values, Address address) {
  char* const pointer = (char*)address;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < kMost; ++i) {
    if (known[i].start == NULL || pointer < known[i].start || pointer >= known[i].start + known[i].bytes) continue;
    for (unsigned n = 0; n < count; ++n) switch (numbers[n]) {
        case 2: *(unsigned*)values[n] = known[i].pinned ? 1 : 2; break;
        case 9: *(int*)values[n] = known[i].device; break;
        case 11: *(Address*)values[n] = (Address)known[i].start; break;
        case 12: *(size_t*)values[n] = known[i].bytes; break;
        default: *(unsigned*)values[n] = 0;
      }
  }
  pthread_mutex_unlock(&mutex);
  return kSuccess;
}
int cuIpcGetMemHandle(IpcHandle* out, Address memory) { return (void)out, (void)memory, kNotSupported; }
int cuIpcOpenMemHandle_v2(Address* out, IpcHandle handle, unsigned flags) {
  return (void)out, (void)handle, (void)flags, kNotSupported;
}
int cuIpcCloseMemHandle(Address memory) { return (void)memory, kNotSupported; }

/* ---- Streams and events: what was queued is done */

int cuMemcpyAsync(Address to, Address from, size_t bytes, void* stream) {
  return (void)stream, memmove((void*)to, (void*)from, bytes), kSuccess;
}
int cuMemsetD8Async(Address to, unsigned char value, size_t bytes, void* stream) {
  return (void)stream, memset((void*)to, value, bytes), kSuccess;
}
int cuStreamCreateWithPriority(void** out, unsigned flags, int priority) {
  return (void)flags, (void)priority, *out = malloc(1), kSuccess;
}
int cuStreamDestroy_v2(void* stream) { return free(stream), kSuccess; }
int cuStreamSynchronize(void* stream) { return (void)stream, kSuccess; }
int cuStreamQuery(void* stream) { return (void)stream, kSuccess; }
int cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
  return (void)stream, (void)event, (void)flags, kSuccess;
}
int cuStreamGetCaptureInfo_v2(void* stream, int* status, unsigned long long* id, void** graph, void*** nodes, size_t* n) {
  return (void)stream, (void)graph, (void)nodes, (void)n, *status = 0, *id = 0, kSuccess;
}
int cuEventCreate(void** out, unsigned flags) { return (void)flags, *out = malloc(1), kSuccess; }
int cuEventDestroy_v2(void* event) { return free(event), kSuccess; }
int cuEventRecord(void* event, void* stream) { return (void)event, (void)stream, kSuccess; }
int cuEventQuery(void* event) { return (void)event, kSuccess; }
int cuEventSynchronize(void* event) { return (void)event, kSuccess; }
int cuEventElapsedTime(float* out, void* from, void* to) { return (void)from, (void)to, *out = 0, kSuccess; }
int cuLaunchHostFunc(void* stream, void (*call)(void*), void* argument) {
  return (void)stream, call(argument), kSuccess;
}

/* ---- Kernels */

int cuModuleLoadData(void** out, const void* image) { return (void)out, (void)image, kNotSupported; }
int cuModuleUnload(void* module) { return (void)module, kNotSupported; }
int cuModuleGetFunction(void** out, void* module, const char* name) {
  return (void)out, (void)module, (void)name, kNotSupported;
}
int cuFuncGetAttribute(int* out, int attribute, void* function) {
  return (void)out, (void)attribute, (void)function, kNotSupported;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  return (void)function, (void)attribute, (void)value, kNotSupported;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* out, void* function, int block, size_t shared) {
  return (void)out, (void)function, (void)block, (void)shared, kNotSupported;
}
int cuLaunchKernel(void) { return kNotSupported; }
int cuLaunchCooperativeKernel(void) { return kNotSupported; }
