/* A CUDA runtime for tests on machines without a GPU: what PyTorch's NCCL path needs of libcudart, on host memory.
 *
 * Device memory is anonymous memory of this process, filled with 0xA5 so that nothing is right by luck. Streams run
 * everything at once, in the calling thread. Kernels do not run: a launch is counted and succeeds, and tests assert that
 * the count did not move (fake_cuda_launches), so no result depends on one. What is not here returns
 * cudaErrorNotSupported; build.py makes those from what the installed torch needs.
 *
 * fake_cuda_hold(1) stands for a kernel that does not end: events recorded from then on are not complete until
 * fake_cuda_hold(0).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kInvalidDevice = 101, kNotReady = 600, kNotSupported = 801 };
enum { kDevices = 8, kPoison = 0xA5, kMemoryHost = 1, kMemoryDevice = 2 };

typedef int Error;
typedef struct { unsigned x, y, z; } Dim3;

static _Thread_local int current_device;
static _Thread_local Error last_error;
static atomic_long launches;
static atomic_int holding;

static Error note(Error error) {
  if (error != kSuccess) last_error = error;
  return error;
}

/* ---- What tests ask and set */

long fake_cuda_launches(void) { return atomic_load(&launches); }
void fake_cuda_hold(int hold) { atomic_store(&holding, hold); }

/* ---- Errors and versions */

Error cudaGetLastError(void) {
  const Error error = last_error;
  last_error = kSuccess;
  return error;
}
Error cudaPeekAtLastError(void) { return last_error; }
const char* cudaGetErrorName(Error error) { return error == kSuccess ? "cudaSuccess" : "cudaErrorOfTheFakeRuntime"; }
const char* cudaGetErrorString(Error error) {
  switch (error) {
    case kSuccess: return "no error";
    case kInvalidValue: return "invalid argument (fake CUDA runtime)";
    case kOutOfMemory: return "out of memory (fake CUDA runtime)";
    case kNotReady: return "device not ready (fake CUDA runtime)";
    case kNotSupported: return "the fake CUDA runtime of the tests does not have this";
    default: return "unknown error (fake CUDA runtime)";
  }
}
Error cudaDriverGetVersion(int* version) { return *version = 1000 * FAKE_CUDA_MAJOR, kSuccess; }
Error cudaRuntimeGetVersion(int* version) { return *version = 1000 * FAKE_CUDA_MAJOR, kSuccess; }
Error cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version, unsigned long long flags,
                                       int* status) {
  (void)version, (void)flags;
  *function = dlsym(RTLD_DEFAULT, symbol);
  if (status != NULL) *status = *function == NULL;
  return *function == NULL ? note(kNotSupported) : kSuccess;
}

/* ---- Devices */

/* cudaDeviceProp of CUDA 13 up to the last member that PyTorch reads; those between are left zero. */
typedef struct {
  char name[256];
  char uuid[16];
  char luid[8];
  unsigned luid_mask;
  size_t total_memory;
  size_t shared_per_block;
  int registers_per_block;
  int warp_size;
  size_t pitch;
  int threads_per_block;
  int threads_dim[3];
  int grid_size[3];
  size_t constant_memory;
  int major, minor;
  size_t texture[2];
  int multiprocessors;
  int rest[128];
} Properties;

Error cudaGetDeviceProperties(Properties* out, int device) {
  if (device < 0 || device >= kDevices) return note(kInvalidDevice);
  memset(out, 0, sizeof(Properties));
  strcpy(out->name, "fake CUDA device of the tests");
  memset(out->uuid, device + 1, sizeof(out->uuid));
  out->total_memory = (size_t)4 << 30;
  out->shared_per_block = 48 << 10;
  out->registers_per_block = 65536;
  out->warp_size = 32;
  out->threads_per_block = 1024;
  for (int i = 0; i < 3; ++i) out->threads_dim[i] = 1024, out->grid_size[i] = 65535;
  out->major = 8;
  out->multiprocessors = 4;
  return kSuccess;
}
Error cudaGetDeviceCount(int* count) { return *count = kDevices, kSuccess; }
Error cudaGetDevice(int* device) { return *device = current_device, kSuccess; }
Error cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return note(kInvalidDevice);
  current_device = device;
  return kSuccess;
}
Error cudaDeviceGetAttribute(int* value, int attribute, int device) {
  enum { kMultiprocessors = 16, kMajor = 75 };
  (void)device;
  *value = attribute == kMultiprocessors ? 4 : attribute == kMajor ? 8 : 0;
  return kSuccess;
}
Error cudaDeviceGetPCIBusId(char* out, int length, int device) {
  static const char kId[] = "0000:00:00.0";
  if (length < (int)sizeof(kId)) return note(kInvalidValue);
  memcpy(out, kId, sizeof(kId));
  out[6] = (char)('0' + device);
  return kSuccess;
}
Error cudaDeviceCanAccessPeer(int* can, int device, int peer) { return *can = device != peer, kSuccess; }
Error cudaDeviceEnablePeerAccess(int peer, unsigned flags) { return (void)peer, (void)flags, kSuccess; }
Error cudaDeviceSynchronize(void) { return kSuccess; }
Error cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, kSuccess; }
Error cudaMemGetInfo(size_t* available, size_t* total) {
  *available = *total = (size_t)4 << 30;
  return kSuccess;
}

/* ---- Memory */

typedef struct Block {
  struct Block* next;
  char* start;
  size_t bytes;
  int kind;
  int device;
} Block;

static pthread_mutex_t blocks_mutex = PTHREAD_MUTEX_INITIALIZER;
static Block* blocks;

static Error allocate(void** out, size_t bytes, int kind) {
  *out = NULL;
  if (bytes == 0) return kSuccess;
  void* start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  Block* block = malloc(sizeof(Block));
  if (start == MAP_FAILED || block == NULL) return free(block), note(kOutOfMemory);
  memset(start, kPoison, bytes);
  pthread_mutex_lock(&blocks_mutex);
  *block = (Block){blocks, start, bytes, kind, current_device};
  blocks = block;
  pthread_mutex_unlock(&blocks_mutex);
  *out = start;
  return kSuccess;
}

static Error release(void* start) {
  if (start == NULL) return kSuccess;
  pthread_mutex_lock(&blocks_mutex);
  Block** link = &blocks;
  while (*link != NULL && (*link)->start != start) link = &(*link)->next;
  Block* block = *link;
  if (block != NULL) *link = block->next;
  pthread_mutex_unlock(&blocks_mutex);
  if (block == NULL) return note(kInvalidValue);
  munmap(block->start, block->bytes);
  free(block);
  return kSuccess;
}

Error cudaMalloc(void** out, size_t bytes) { return allocate(out, bytes, kMemoryDevice); }
Error cudaFree(void* start) { return release(start); }
Error cudaMallocAsync(void** out, size_t bytes, void* stream) { return (void)stream, cudaMalloc(out, bytes); }
Error cudaFreeAsync(void* start, void* stream) { return (void)stream, cudaFree(start); }
Error cudaHostAlloc(void** out, size_t bytes, unsigned flags) { return (void)flags, allocate(out, bytes, kMemoryHost); }
Error cudaFreeHost(void* start) { return release(start); }
Error cudaHostRegister(void* start, size_t bytes, unsigned flags) {
  return (void)start, (void)bytes, (void)flags, kSuccess;
}
Error cudaHostUnregister(void* start) { return (void)start, kSuccess; }

typedef struct {
  int kind;
  int device;
  void* device_pointer;
  void* host_pointer;
  long reserved[8];
} PointerAttributes;

Error cudaPointerGetAttributes(PointerAttributes* out, const void* pointer) {
  memset(out, 0, sizeof(*out));
  out->host_pointer = (void*)pointer;
  pthread_mutex_lock(&blocks_mutex);
  for (const Block* block = blocks; block != NULL; block = block->next) {
    if ((const char*)pointer < block->start || (const char*)pointer >= block->start + block->bytes) continue;
    out->kind = block->kind;
    out->device = block->device;
    out->device_pointer = (void*)pointer;
  }
  pthread_mutex_unlock(&blocks_mutex);
  return kSuccess;
}

Error cudaMemcpy(void* to, const void* from, size_t bytes, int kind) {
  (void)kind;
  memmove(to, from, bytes);
  return kSuccess;
}
Error cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream) {
  return (void)stream, cudaMemcpy(to, from, bytes, kind);
}
Error cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, void* stream) {
  return (void)to_device, (void)from_device, (void)stream, cudaMemcpy(to, from, bytes, 0);
}
Error cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                        int kind, void* stream) {
  (void)stream;
  for (size_t row = 0; row < height; ++row) {
    cudaMemcpy((char*)to + row * to_pitch, (const char*)from + row * from_pitch, width, kind);
  }
  return kSuccess;
}
Error cudaMemset(void* start, int value, size_t bytes) { return memset(start, value, bytes), kSuccess; }
Error cudaMemsetAsync(void* start, int value, size_t bytes, void* stream) {
  return (void)stream, cudaMemset(start, value, bytes);
}

/* ---- Streams: all done when the call returns */

Error cudaStreamCreate(void** stream) { return *stream = malloc(1), kSuccess; }
Error cudaStreamCreateWithFlags(void** stream, unsigned flags) { return (void)flags, cudaStreamCreate(stream); }
Error cudaStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  return (void)flags, (void)priority, cudaStreamCreate(stream);
}
Error cudaStreamDestroy(void* stream) { return free(stream), kSuccess; }
Error cudaStreamQuery(void* stream) { return (void)stream, atomic_load(&holding) ? kNotReady : kSuccess; }
Error cudaStreamSynchronize(void* stream) { return (void)stream, kSuccess; }
Error cudaStreamWaitEvent(void* stream, void* event, unsigned flags) {
  return (void)stream, (void)event, (void)flags, kSuccess;
}
Error cudaStreamGetPriority(void* stream, int* priority) { return (void)stream, *priority = 0, kSuccess; }
Error cudaStreamIsCapturing(void* stream, int* status) { return (void)stream, *status = 0, kSuccess; }
Error cudaStreamGetCaptureInfo(void* stream, int* status, unsigned long long* id, void** graph, void** dependencies,
                               void** edges, size_t* count) {
  (void)stream, (void)id, (void)graph, (void)dependencies, (void)edges, (void)count;
  *status = 0;
  return kSuccess;
}
Error cudaThreadExchangeStreamCaptureMode(int* mode) { return (void)mode, kSuccess; }
Error cudaLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  (void)stream;
  function(data);
  return kSuccess;
}
Error cudaStreamAddCallback(void* stream, void (*function)(void*, Error, void*), void* data, unsigned flags) {
  (void)flags;
  function(stream, kSuccess, data);
  return kSuccess;
}

/* ---- Events */

typedef struct {
  struct timespec recorded;
  atomic_int held; /* recorded while events were held, and so not complete before they are let go */
} Event;

Error cudaEventCreateWithFlags(Event** event, unsigned flags) {
  (void)flags;
  *event = calloc(1, sizeof(Event));
  return *event == NULL ? note(kOutOfMemory) : kSuccess;
}
Error cudaEventCreate(Event** event) { return cudaEventCreateWithFlags(event, 0); }
Error cudaEventDestroy(Event* event) { return free(event), kSuccess; }
Error cudaEventRecordWithFlags(Event* event, void* stream, unsigned flags) {
  (void)stream, (void)flags;
  clock_gettime(CLOCK_MONOTONIC, &event->recorded);
  atomic_store(&event->held, atomic_load(&holding));
  return kSuccess;
}
Error cudaEventRecord(Event* event, void* stream) { return cudaEventRecordWithFlags(event, stream, 0); }
Error cudaEventQuery(Event* event) {
  return atomic_load(&event->held) && atomic_load(&holding) ? kNotReady : kSuccess;
}
Error cudaEventSynchronize(Event* event) {
  while (cudaEventQuery(event) == kNotReady) usleep(1000);
  return kSuccess;
}
Error cudaEventElapsedTime(float* milliseconds, const Event* start, const Event* end) {
  *milliseconds = 1e3f * (float)(end->recorded.tv_sec - start->recorded.tv_sec) +
                  1e-6f * (float)(end->recorded.tv_nsec - start->recorded.tv_nsec);
  return kSuccess;
}

/* ---- Kernels: registered, launched, never run */

static Error count_launch(void) {
  atomic_fetch_add(&launches, 1);
  return kSuccess;
}

void** __cudaRegisterFatBinary(void* image) {
  (void)image;
  return calloc(1, sizeof(void*));
}
void __cudaRegisterFatBinaryEnd(void** handle) { (void)handle; }
void __cudaUnregisterFatBinary(void** handle) { free(handle); }
void __cudaRegisterFunction(void** handle, const char* host, char* device, const char* name, int limit, void* a,
                            void* b, void* c, void* d, int* e) {
  (void)handle, (void)host, (void)device, (void)name, (void)limit, (void)a, (void)b, (void)c, (void)d, (void)e;
}
void __cudaRegisterVar(void** handle, char* host, char* device, const char* name, int external, size_t bytes, int fixed,
                       int global) {
  (void)handle, (void)host, (void)device, (void)name, (void)external, (void)bytes, (void)fixed, (void)global;
}
unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, void* stream) {
  return (void)grid, (void)block, (void)shared, (void)stream, 0;
}
Error __cudaPopCallConfiguration(Dim3* grid, Dim3* block, size_t* shared, void** stream) {
  *grid = *block = (Dim3){1, 1, 1};
  *shared = 0;
  *stream = NULL;
  return kSuccess;
}
char __cudaInitModule(void** handle) { return (void)handle, 1; }
Error __cudaGetKernel(void** kernel, const void* function) { return *kernel = (void*)function, kSuccess; }
Error __cudaLaunchKernel(void* kernel, Dim3 grid, Dim3 block, void** arguments, size_t shared, void* stream) {
  (void)kernel, (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
  return count_launch();
}
Error cudaLaunchKernel(const void* kernel, Dim3 grid, Dim3 block, void** arguments, size_t shared, void* stream) {
  (void)kernel, (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
  return count_launch();
}
Error cudaLaunchKernelExC(const void* config, const void* kernel, void** arguments) {
  (void)config, (void)kernel, (void)arguments;
  return count_launch();
}
Error cudaLaunchCooperativeKernel(const void* kernel, Dim3 grid, Dim3 block, void** arguments, size_t shared,
                                  void* stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
Error cudaFuncSetAttribute(const void* kernel, int attribute, int value) {
  return (void)kernel, (void)attribute, (void)value, kSuccess;
}
Error cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks_out, const void* kernel, int threads,
                                                             size_t shared, unsigned flags) {
  (void)kernel, (void)threads, (void)shared, (void)flags;
  *blocks_out = 1;
  return kSuccess;
}
Error cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks_out, const void* kernel, int threads, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks_out, kernel, threads, shared, 0);
}
