/* A libnccl.so.2 for tests of THESEUS_FALLBACK: writes each call to the file FAKE_NCCL_LOG, one line a call, and checks
 * that a communicator it is given is one that it made. Collectives fill the receive buffer with kMark, so that a result
 * tells who made it. FAKE_NCCL_FAIL names a function that fails. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef VERSION
#define VERSION 23007
#endif

enum { kMark = 77, kMagic = 0x600DC033 };
enum { kSuccess = 0, kUnhandledCudaError = 1, kInvalidArgument = 4 };

typedef struct { char internal[128]; } UniqueId;
typedef struct { int magic, ranks, rank; } Comm;

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
  note("%s rank=%d count=%zu type=%d what=%d stream=%zu\n", function, comm->rank, count, type, what, (size_t)stream);
  if (out != NULL) memset(out, kMark, count * kBytes[type]);
  return kSuccess;
}

int ncclGetVersion(int* version) { return *version = VERSION, kSuccess; }
const char* ncclGetErrorString(int result) { return result == kUnhandledCudaError ? "fake cuda error" : "fake text"; }
const char* ncclGetLastError(void* comm) { return (void)comm, "the fake's last error"; }
int ncclGetUniqueId(UniqueId* id) {
  note("ncclGetUniqueId\n");
  memset(id, 5, sizeof *id);
  return kSuccess;
}
int ncclCommInitRank(Comm** comm, int ranks, UniqueId id, int rank) {
  /* A call of its own through the dynamic linker: it must not end in ours, which stands first in the process. */
  int version = 0;
  ncclGetVersion(&version);
  note("ncclCommInitRank rank=%d of %d id=%d itself=%d\n", rank, ranks, id.internal[127], version == VERSION);
  if (fails("ncclCommInitRank")) return kUnhandledCudaError;
  *comm = malloc(sizeof **comm);
  **comm = (Comm){kMagic, ranks, rank};
  return kSuccess;
}
static int end(const char* function, Comm* comm) {
  const int checked = check(function, comm);
  if (checked != kSuccess) return checked;
  note("%s rank=%d\n", function, comm->rank);
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
int ncclGroupStart(void) { return note("ncclGroupStart\n"), kSuccess; }
int ncclGroupEnd(void) { return note("ncclGroupEnd\n"), kSuccess; }

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
