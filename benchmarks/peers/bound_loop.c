// No library: the least an all-reduce can take on this machine when every rank can write every buffer. Each rank sums
// its share of all buffers into all buffers, between two barriers. Under the loop of loop.h, and for allreduce only.
//
// Environment: THESEUS_BENCH_RANK, THESEUS_BENCH_RANKS and THESEUS_BENCH_ID, whose folder names the shared memory.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "loop.h"

enum { kHead = 4096, kMostRanks = 64 };

// The first page of the shared memory. The words that ranks write apart lie on lines apart.
struct head {
  _Alignas(128) _Atomic uint32_t arrived;
  _Alignas(128) _Atomic uint32_t generation;
  _Alignas(128) double values[kMostRanks];
};

static struct head* head;
static struct loop_rank* myself;
static size_t buffer_bytes;
static int buffers_given;
static float* first_buffer;

static const char* start(int* argc, char*** argv, struct loop_rank* self) {
  const char* rank = getenv("THESEUS_BENCH_RANK");
  const char* ranks = getenv("THESEUS_BENCH_RANKS");
  if (rank == NULL || ranks == NULL || *argc < 3) {
    return "THESEUS_BENCH_RANK and THESEUS_BENCH_RANKS must be set";
  }
  self->rank = atoi(rank);
  self->ranks = atoi(ranks);
  if (self->ranks > kMostRanks) {
    return "too many ranks";
  }
  size_t page = 4096;
  buffer_bytes = (strtoull((*argv)[2], NULL, 10) + page) / page * page;
  const char* folder = strrchr((*argv)[1], '/');
  char name[256];
  snprintf(name, sizeof name, "%s.bound", folder != NULL ? folder : (*argv)[1]);
  int file = shm_open(name, O_RDWR | O_CREAT, 0600);
  size_t whole = kHead + (size_t)self->ranks * buffer_bytes;
  if (file < 0 || ftruncate(file, (off_t)whole) != 0) {
    return "no shared memory";
  }
  char* memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) {
    return "cannot map the shared memory";
  }
  head = (struct head*)memory;
  first_buffer = (float*)(memory + kHead);
  myself = self;
  atomic_fetch_add(&head->arrived, 1);
  while (atomic_load(&head->arrived) < (uint32_t)self->ranks && atomic_load(&head->generation) == 0) {
    sched_yield();
  }
  // Everybody has it mapped: the name can go, so that nothing is left behind whatever happens.
  if (self->rank == 0) {
    shm_unlink(name);
    atomic_store(&head->arrived, 0);
    atomic_store(&head->generation, 1);
  }
  while (atomic_load(&head->generation) == 0) {
    sched_yield();
  }
  return NULL;
}

static float* buffer_of(int rank) { return first_buffer + (size_t)rank * (buffer_bytes / sizeof(float)); }

// The buffer that is reduced is shared. The other one serves alltoall alone, which this program does not run.
static void* allocate(size_t bytes) { return buffers_given++ == 0 ? (void*)buffer_of(myself->rank) : malloc(bytes); }

static int barrier(struct loop_rank* self) {
  uint32_t generation = atomic_load_explicit(&head->generation, memory_order_acquire);
  if (atomic_fetch_add(&head->arrived, 1) + 1 == (uint32_t)self->ranks) {
    atomic_store_explicit(&head->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&head->generation, generation + 1, memory_order_release);
    return 0;
  }
  for (int spins = 0; atomic_load_explicit(&head->generation, memory_order_acquire) == generation; ++spins) {
    if (spins > 200) {
      sched_yield();
    }
  }
  return 0;
}

static void sum_two(float* restrict left, float* restrict right, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    float sum = left[i] + right[i];
    left[i] = sum;
    right[i] = sum;
  }
}

static void sum_four(float* restrict a, float* restrict b, float* restrict c, float* restrict d, size_t begin,
                     size_t end) {
  for (size_t i = begin; i < end; ++i) {
    float sum = a[i] + b[i] + c[i] + d[i];
    a[i] = sum;
    b[i] = sum;
    c[i] = sum;
    d[i] = sum;
  }
}

static int run(struct loop_rank* self, enum loop_collective collective, size_t elements) {
  if (collective != LOOP_ALLREDUCE || (self->ranks != 2 && self->ranks != 4)) {
    return 1;
  }
  size_t begin = elements * (size_t)self->rank / (size_t)self->ranks;
  size_t end = elements * (size_t)(self->rank + 1) / (size_t)self->ranks;
  barrier(self);
  if (self->ranks == 2) {
    sum_two(buffer_of(0), buffer_of(1), begin, end);
  } else {
    sum_four(buffer_of(0), buffer_of(1), buffer_of(2), buffer_of(3), begin, end);
  }
  return barrier(self);
}

static int maximum(struct loop_rank* self, double* value) {
  head->values[self->rank] = *value;
  barrier(self);
  for (int rank = 0; rank < self->ranks; ++rank) {
    if (head->values[rank] > *value) {
      *value = head->values[rank];
    }
  }
  return barrier(self);
}

static void stop(struct loop_rank* self) { (void)self; }

static size_t scattered_at(const struct loop_rank* self, size_t elements) { return (size_t)self->rank * elements; }

int main(int argc, char** argv) {
  const struct loop_library library = {start, allocate, run, barrier, maximum, stop, scattered_at};
  return loop_main(&library, argc, argv);
}
