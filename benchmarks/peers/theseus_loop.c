// The loop of loop.h on NCCL's API with host pointers.
//
// Environment: THESEUS_BENCH_RANK, THESEUS_BENCH_RANKS, THESEUS_BENCH_ID (a file through which rank 0 hands out the
// unique id) and THESEUS_BENCH_ALLOC ("private" by default, or "nccl" for buffers from ncclMemAlloc).
#define _GNU_SOURCE
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "loop.h"

static ncclComm_t communicator;
static float barrier_word[1];
static double maximum_word[1];

static const char* failure(const char* step, ncclResult_t code) {
  static char text[512];
  snprintf(text, sizeof text, "%s: %s (%s)", step, ncclGetErrorString(code), ncclGetLastError(communicator));
  return text;
}

// The file appears under its name only once it is complete.
static int publish(const char* path, const ncclUniqueId* id) {
  char temporary[4096];
  snprintf(temporary, sizeof temporary, "%s.part", path);
  FILE* file = fopen(temporary, "wb");
  if (file == NULL) {
    return -1;
  }
  size_t written = fwrite(id, sizeof *id, 1, file);
  int closed = fclose(file);
  return written == 1 && closed == 0 ? rename(temporary, path) : -1;
}

static int await(const char* path, ncclUniqueId* id) {
  const struct timespec pause = {0, 1000000};
  for (int tries = 0; tries < 30000; ++tries) {
    FILE* file = fopen(path, "rb");
    if (file != NULL) {
      size_t got = fread(id, sizeof *id, 1, file);
      fclose(file);
      return got == 1 ? 0 : -1;
    }
    nanosleep(&pause, NULL);
  }
  return -1;
}

static const char* start(int* argc, char*** argv, struct loop_rank* self) {
  (void)argc;
  (void)argv;
  const char* rank = getenv("THESEUS_BENCH_RANK");
  const char* ranks = getenv("THESEUS_BENCH_RANKS");
  const char* path = getenv("THESEUS_BENCH_ID");
  if (rank == NULL || ranks == NULL || path == NULL) {
    return "THESEUS_BENCH_RANK, THESEUS_BENCH_RANKS and THESEUS_BENCH_ID must be set";
  }
  self->rank = atoi(rank);
  self->ranks = atoi(ranks);
  ncclUniqueId id;
  memset(&id, 0, sizeof id);
  if (self->rank == 0) {
    ncclResult_t made = ncclGetUniqueId(&id);
    if (made != ncclSuccess) {
      return failure("ncclGetUniqueId", made);
    }
    if (publish(path, &id) != 0) {
      return "cannot write the file THESEUS_BENCH_ID";
    }
  } else if (await(path, &id) != 0) {
    return "no unique id in the file THESEUS_BENCH_ID after 30 s";
  }
  ncclResult_t code = ncclCommInitRank(&communicator, self->ranks, id, self->rank);
  return code == ncclSuccess ? NULL : failure("ncclCommInitRank", code);
}

static void* allocate(size_t bytes) {
  const char* kind = getenv("THESEUS_BENCH_ALLOC");
  void* memory = NULL;
  if (kind != NULL && strcmp(kind, "nccl") == 0) {
    return ncclMemAlloc(&memory, bytes) == ncclSuccess ? memory : NULL;
  }
  return posix_memalign(&memory, 4096, bytes) == 0 ? memory : NULL;
}

static int run(struct loop_rank* self, enum loop_collective collective, size_t elements) {
  float* buffer = self->buffer;
  float* mine = buffer + (size_t)self->rank * elements;
  switch (collective) {
    case LOOP_ALLREDUCE: return ncclAllReduce(buffer, buffer, elements, ncclFloat32, ncclSum, communicator, NULL);
    case LOOP_ALLGATHER: return ncclAllGather(mine, buffer, elements, ncclFloat32, communicator, NULL);
    case LOOP_REDUCE_SCATTER:
      return ncclReduceScatter(buffer, mine, elements, ncclFloat32, ncclSum, communicator, NULL);
    case LOOP_BROADCAST: return ncclBroadcast(buffer, buffer, elements, ncclFloat32, 0, communicator, NULL);
    case LOOP_ALLTOALL: return ncclAlltoAll(buffer, self->output, elements, ncclFloat32, communicator, NULL);
    default: return ncclInvalidArgument;
  }
}

// NCCL has no barrier: nobody leaves a sum before everybody has put in a part.
static int barrier(struct loop_rank* self) {
  (void)self;
  return ncclAllReduce(barrier_word, barrier_word, 1, ncclFloat32, ncclSum, communicator, NULL);
}

static int maximum(struct loop_rank* self, double* value) {
  (void)self;
  maximum_word[0] = *value;
  int code = ncclAllReduce(maximum_word, maximum_word, 1, ncclFloat64, ncclMax, communicator, NULL);
  *value = maximum_word[0];
  return code;
}

static void stop(struct loop_rank* self) {
  (void)self;
  ncclCommDestroy(communicator);
}

// NCCL's in-place rule: the result replaces this rank's own block of the input.
static size_t scattered_at(const struct loop_rank* self, size_t elements) { return (size_t)self->rank * elements; }

int main(int argc, char** argv) {
  const struct loop_library library = {start, allocate, run, barrier, maximum, stop, scattered_at};
  return loop_main(&library, argc, argv);
}
