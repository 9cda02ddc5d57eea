// The C side of overhead.py, loaded into its ranks: the same call without Python around it.
#include <nccl.h>
#include <stdio.h>
#include <time.h>

static ncclComm_t communicator;

static double now_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// All return ncclSuccess or the code of what failed.
int overhead_unique_id(void* id) { return ncclGetUniqueId(id); }

int overhead_join(const void* id, int ranks, int rank) {
  return ncclCommInitRank(&communicator, ranks, *(const ncclUniqueId*)id, rank);
}

// `seconds` receives the time of `times` all-reduces of `count` floats at `data`, in place.
int overhead_run(float* data, size_t count, long times, double* seconds) {
  const double begin = now_seconds();
  for (long i = 0; i < times; ++i) {
    const ncclResult_t code = ncclAllReduce(data, data, count, ncclFloat32, ncclSum, communicator, NULL);
    if (code != ncclSuccess) {
      return (int)code;
    }
  }
  *seconds = now_seconds() - begin;
  return ncclSuccess;
}

int overhead_leave(void) { return ncclCommDestroy(communicator); }
