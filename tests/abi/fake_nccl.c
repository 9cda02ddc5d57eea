/* A libnccl.so.2 for tests of what is handed to the real one: writes each call to the file FAKE_NCCL_LOG, one line a
 * call, with the thread's CUDA device where there is a driver, and checks that communicators and windows it is given are
 * those that it made. As the real one it makes communicators when all ranks have come, at the end of a group where one
 * is open, and windows likewise; who waits in vain is STUCK. Collectives fill the receive buffer with kMark, so that a
 * result tells who made it. FAKE_NCCL_FAIL names a function that fails. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef VERSION
#define VERSION 23007
#endif

enum { kMark = 77, kMagic = 0x600DC033, kWindowMagic = 0x600D71D0, kMost = 64, kPatience = 20 };
enum { kSuccess = 0, kUnhandledCudaError = 1, kInvalidArgument = 4 };

typedef struct { char internal[128]; } UniqueId;
typedef struct { int magic, ranks, rank, id; } Comm;
typedef struct { int magic, rank; void* memory; } Window;
typedef struct { int ranks, rank, stride; } Team;

static void note(const char* format, ...) {
  char line[256];
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  FILE* log = fopen(getenv("FAKE_NCCL_LOG"), "a");
  if (log == NULL) abort();
  fwrite(line, 1, (size_t)length, log);
  fclose(log);
}

/* " device=2", or nothing where there is no driver, or no device. */
static const char* device_text(void) {
  static _Thread_local char text[32];
  int device = -1;
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  int (*get)(int*) = driver == NULL ? NULL : (int (*)(int*))dlsym(driver, "cuCtxGetDevice");
  text[0] = 0;
  if (get != NULL && get(&device) == 0) snprintf(text, sizeof text, " device=%d", device);
  return text;
}

static int fails(const char* function) {
  const char* wanted = getenv("FAKE_NCCL_FAIL");
  return wanted != NULL && strcmp(wanted, function) == 0;
}

static int check(const char* function, const Comm* comm) {
  if (comm == NULL || comm->magic != kMagic) {
    note("FOREIGN HANDLE in %s\n", function);
    return kInvalidArgument;
  }
  return fails(function) ? kUnhandledCudaError : kSuccess;
}

static const size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

static int run(const char* function, void* out, size_t count, int type, int what, const Comm* comm, void* stream) {
  const int checked = check(function, comm);
  if (checked != kSuccess) return checked;
  note("%s rank=%d count=%zu type=%d what=%d stream=%zu%s\n", function, comm->rank, count, type, what, (size_t)stream,
       device_text());
  if (out != NULL) memset(out, kMark, count * kBytes[type]);
  return kSuccess;
}

int ncclGetVersion(int* version) { return *version = VERSION, kSuccess; }
const char* ncclGetErrorString(int result) { return result == kUnhandledCudaError ? "fake cuda error" : "fake text"; }
const char* ncclGetLastError(void* comm) { return (void)comm, "the fake's last error"; }

/* ---- Groups, and who waits for whom */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int come[256]; /* ranks, by id */
static int next_id = 5;

static _Thread_local int depth;
static _Thread_local struct { Comm* comms[kMost]; int inits; Window** windows[kMost]; Window* made[kMost]; int n; } group;

int ncclGetUniqueId(UniqueId* id) {
  note("ncclGetUniqueId\n");
  pthread_mutex_lock(&mutex);
  memset(id, next_id++, sizeof *id);
  pthread_mutex_unlock(&mutex);
  return kSuccess;
}

static int wait_for_all(const Comm* comm) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += kPatience;
  pthread_mutex_lock(&mutex);
  int waited = 0;
  while (come[comm->id] < comm->ranks && waited == 0) waited = pthread_cond_timedwait(&changed, &mutex, &until);
  pthread_mutex_unlock(&mutex);
  if (waited != 0) note("STUCK rank=%d id=%d\n", comm->rank, comm->id);
  return waited == 0 ? kSuccess : kUnhandledCudaError;
}

static int finish_group(void) {
  int result = kSuccess;
  for (int i = 0; i < group.inits; ++i) result |= wait_for_all(group.comms[i]);
  for (int i = 0; i < group.n; ++i) *group.windows[i] = group.made[i];
  group.inits = group.n = 0;
  return result;
}

int ncclGroupStart(void) { return note("ncclGroupStart\n"), ++depth, kSuccess; }
int ncclGroupEnd(void) {
  note("ncclGroupEnd\n");
  return --depth > 0 ? kSuccess : finish_group();
}
int ncclCommInitRank(Comm** comm, int ranks, UniqueId id, int rank) {
  /* A call of its own through the dynamic linker: it must not end in ours, which stands first in the process. */
  int version = 0;
  ncclGetVersion(&version);
  note("ncclCommInitRank rank=%d of %d id=%d itself=%d%s\n", rank, ranks, id.internal[127], version == VERSION,
       device_text());
  if (fails("ncclCommInitRank")) return kUnhandledCudaError;
  *comm = malloc(sizeof **comm);
  **comm = (Comm){kMagic, ranks, rank, id.internal[127]};
  pthread_mutex_lock(&mutex);
  ++come[(*comm)->id];
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
  group.comms[group.inits++] = *comm;
  return depth > 0 ? kSuccess : finish_group();
}
static int end(const char* function, Comm* comm) {
  const int checked = check(function, comm);
  if (checked != kSuccess) return checked;
  note("%s rank=%d%s\n", function, comm->rank, device_text());
  comm->magic = 0;
  free(comm);
  return kSuccess;
}
int ncclCommDestroy(Comm* comm) { return end("ncclCommDestroy", comm); }
int ncclCommAbort(Comm* comm) { return end("ncclCommAbort", comm); }
int ncclCommGetAsyncError(Comm* comm, int* error) {
  const int checked = check("ncclCommGetAsyncError", comm);
  *error = checked == kUnhandledCudaError ? checked : kSuccess;
  return checked == kInvalidArgument ? checked : kSuccess;
}
int ncclAllReduce(const void* in, void* out, size_t n, int type, int op, Comm* comm, void* stream) {
  return (void)in, run("ncclAllReduce", out, n, type, op, comm, stream);
}
int ncclBroadcast(const void* in, void* out, size_t n, int type, int root, Comm* comm, void* stream) {
  return (void)in, run("ncclBroadcast", out, n, type, root, comm, stream);
}
int ncclReduce(const void* in, void* out, size_t n, int type, int op, int root, Comm* comm, void* stream) {
  return (void)in, run("ncclReduce", out, n, type, 10 * op + root, comm, stream);
}
int ncclAllGather(const void* in, void* out, size_t n, int type, Comm* comm, void* stream) {
  return (void)in, run("ncclAllGather", out, n, type, 0, comm, stream);
}
int ncclReduceScatter(const void* in, void* out, size_t n, int type, int op, Comm* comm, void* stream) {
  return (void)in, run("ncclReduceScatter", out, n, type, op, comm, stream);
}
#if VERSION >= 22809
int ncclAlltoAll(const void* in, void* out, size_t n, int type, Comm* comm, void* stream) {
  return (void)in, run("ncclAlltoAll", out, n, type, 0, comm, stream);
}
int ncclGather(const void* in, void* out, size_t n, int type, int root, Comm* comm, void* stream) {
  return (void)in, run("ncclGather", out, n, type, root, comm, stream);
}
int ncclScatter(const void* in, void* out, size_t n, int type, int root, Comm* comm, void* stream) {
  return (void)in, run("ncclScatter", out, n, type, root, comm, stream);
}
#endif
int ncclSend(const void* in, size_t n, int type, int peer, Comm* comm, void* stream) {
  return (void)in, run("ncclSend", NULL, n, type, peer, comm, stream);
}
int ncclRecv(void* out, size_t n, int type, int peer, Comm* comm, void* stream) {
  return run("ncclRecv", out, n, type, peer, comm, stream);
}

/* ---- Windows, one-sided transfers, the device API */

static int check_window(const char* function, const Window* window) {
  if (window != NULL && window->magic == kWindowMagic) return fails(function) ? kUnhandledCudaError : kSuccess;
  note("FOREIGN WINDOW in %s\n", function);
  return kInvalidArgument;
}

int ncclMemAlloc(void** out, size_t bytes) {
  note("ncclMemAlloc bytes=%zu%s\n", bytes, device_text());
  return posix_memalign(out, 4096, bytes);
}
int ncclMemFree(void* memory) { return note("ncclMemFree\n"), free(memory), kSuccess; }
int ncclCommWindowRegister(Comm* comm, void* memory, size_t bytes, Window** out, int flags) {
  const int checked = check("ncclCommWindowRegister", comm);
  if (checked != kSuccess) return checked;
  note("ncclCommWindowRegister rank=%d bytes=%zu flags=%d%s\n", comm->rank, bytes, flags, device_text());
  Window* window = malloc(sizeof *window);
  *window = (Window){kWindowMagic, comm->rank, memory};
  group.windows[group.n] = out;
  group.made[group.n++] = window;
  return depth > 0 ? kSuccess : finish_group();
}
int ncclCommWindowDeregister(Comm* comm, Window* window) {
  const int checked = check("ncclCommWindowDeregister", comm) + check_window("ncclCommWindowDeregister", window);
  if (checked != kSuccess) return checked;
  note("ncclCommWindowDeregister rank=%d\n", comm->rank);
  return window->magic = 0, free(window), kSuccess;
}
int ncclWinGetUserPtr(Comm* comm, Window* window, void** out) {
  const int checked = check("ncclWinGetUserPtr", comm) + check_window("ncclWinGetUserPtr", window);
  if (checked == kSuccess) *out = window->memory;
  return checked;
}
int ncclPutSignal(const void* from, size_t n, int type, int peer, Window* window, size_t offset, int signal, int context,
                  unsigned flags, Comm* comm, void* stream) {
  const int checked = check("ncclPutSignal", comm) + check_window("ncclPutSignal", window);
  if (checked != kSuccess) return checked;
  note("ncclPutSignal rank=%d count=%zu type=%d peer=%d offset=%zu signal=%d context=%d flags=%u stream=%zu\n",
       comm->rank, n, type, peer, offset, signal, context, flags, (size_t)stream);
  return (void)from, kSuccess;
}
int ncclSignal(int peer, int signal, int context, unsigned flags, Comm* comm, void* stream) {
  (void)signal, (void)context, (void)flags, (void)stream;
  const int checked = check("ncclSignal", comm);
  if (checked == kSuccess) note("ncclSignal rank=%d peer=%d\n", comm->rank, peer);
  return checked;
}
int ncclDevCommCreate(Comm* comm, const void* needs, int* out) {
  const int checked = check("ncclDevCommCreate", comm);
  if (checked == kSuccess) note("ncclDevCommCreate rank=%d\n", comm->rank);
  return (void)needs, *out = kMark, checked;
}
int ncclDevCommDestroy(Comm* comm, const int* made) {
  const int checked = check("ncclDevCommDestroy", comm);
  if (checked == kSuccess) note("ncclDevCommDestroy rank=%d its=%d\n", comm->rank, *made == kMark);
  return checked;
}
int ncclGetPeerDevicePointer(Window* window, size_t offset, int peer, void** out) {
  const int checked = check_window("ncclGetPeerDevicePointer", window);
  if (checked == kSuccess) *out = (char*)window->memory + offset + peer;
  return checked;
}
int ncclLsaBarrierCreateRequirement(Team team, int barriers, void* handle, void* out) {
  note("ncclLsaBarrierCreateRequirement ranks=%d barriers=%d\n", team.ranks, barriers);
  return (void)handle, (void)out, kSuccess;
}
Team ncclTeamLsa(Comm* comm) {
  return check("ncclTeamLsa", comm) == kSuccess ? (Team){comm->ranks, comm->rank, 1} : (Team){0, 0, 0};
}
