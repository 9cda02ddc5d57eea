// Two measurements of the machine itself, loaded into the harness as a shared library: how far apart the two processors
// are just now, and how fast shared memory can be reduced at all.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

static double now_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// Spins a while, then lets others run: two threads that share a processor must not wait for each other's time slice.
static void wait_for(_Atomic uint32_t* flag, uint32_t value) {
  for (int spins = 0; atomic_load_explicit(flag, memory_order_acquire) != value; ++spins) {
    if (spins > 2000) {
      sched_yield();
      spins = 0;
    }
  }
}

// Starts `body` on the given processor of those this process may use. Bound, because a new thread starts on its maker's
// processor and would stay there for longer than a measurement takes.
static int start_on(int which, pthread_t* thread, void* (*body)(void*), void* argument) {
  cpu_set_t allowed;
  cpu_set_t one;
  CPU_ZERO(&one);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
    return -1;
  }
  for (int processor = 0, seen = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &allowed) && seen++ == which) {
      CPU_SET(processor, &one);
    }
  }
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  if (CPU_COUNT(&one) == 1) {
    pthread_attr_setaffinity_np(&attributes, sizeof one, &one);
  }
  int code = pthread_create(thread, &attributes, body, argument);
  pthread_attr_destroy(&attributes);
  return code;
}

struct flags {
  _Alignas(128) _Atomic uint32_t ping;
  _Alignas(128) _Atomic uint32_t pong;
  uint32_t round_trips;
  double seconds;
};

static void* answer(void* argument) {
  struct flags* flags = argument;
  for (uint32_t i = 1; i <= 2 * flags->round_trips; ++i) {
    wait_for(&flags->ping, i);
    atomic_store_explicit(&flags->pong, i, memory_order_release);
  }
  return NULL;
}

// The first half of the round trips warms up.
static void* ask(void* argument) {
  struct flags* flags = argument;
  double begin = 0;
  for (uint32_t i = 1; i <= 2 * flags->round_trips; ++i) {
    if (i == flags->round_trips + 1) {
      begin = now_seconds();
    }
    atomic_store_explicit(&flags->ping, i, memory_order_release);
    wait_for(&flags->pong, i);
  }
  flags->seconds = now_seconds() - begin;
  return NULL;
}

// One-way latency in seconds of a flag in shared memory between threads on the first two processors. Negative if the
// threads could not be started.
double flag_latency(uint32_t round_trips) {
  struct flags flags = {0, 0, round_trips, 0};
  pthread_t asker;
  pthread_t answerer;
  if (start_on(1, &answerer, answer, &flags) != 0) {
    return -1;
  }
  if (start_on(0, &asker, ask, &flags) != 0) {
    ask(&flags);
    pthread_join(answerer, NULL);
    return -1;
  }
  pthread_join(asker, NULL);
  pthread_join(answerer, NULL);
  return flags.seconds / (2.0 * round_trips);
}

struct reduction {
  float* left;
  float* right;
  size_t floats;
  long iterations;
  int workers;
  _Alignas(128) _Atomic uint32_t arrived;
  _Alignas(128) _Atomic uint32_t generation;
};

struct worker {
  struct reduction* shared;
  int index;
  double begin;
  double end;
};

static void meet(struct reduction* shared) {
  uint32_t generation = atomic_load_explicit(&shared->generation, memory_order_acquire);
  if (atomic_fetch_add(&shared->arrived, 1) + 1 == (uint32_t)shared->workers) {
    atomic_store(&shared->arrived, 0);
    atomic_store_explicit(&shared->generation, generation + 1, memory_order_release);
  } else {
    wait_for(&shared->generation, generation + 1);
  }
}

// A fifth of the iterations warms up.
static void* reduce_share(void* argument) {
  struct worker* worker = argument;
  struct reduction* shared = worker->shared;
  size_t begin = shared->floats * (size_t)worker->index / (size_t)shared->workers;
  size_t end = shared->floats * (size_t)(worker->index + 1) / (size_t)shared->workers;
  float* restrict left = shared->left;
  float* restrict right = shared->right;
  long warmup = shared->iterations / 5 + 1;
  for (long i = -warmup; i < shared->iterations; ++i) {
    if (i == 0) {
      worker->begin = now_seconds();
    }
    for (size_t at = begin; at < end; ++at) {
      float sum = left[at] + right[at];
      left[at] = sum;
      right[at] = sum;
    }
    meet(shared);
  }
  worker->end = now_seconds();
  return NULL;
}

// Seconds that two processors need to sum two shared buffers of `bytes` into both: the least an all-reduce of two
// ranks can take when no copy is made. Negative if there is no memory or thread.
double reduction_bound(size_t bytes, long iterations) {
  float* memory = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return -1;
  }
  size_t floats = bytes / sizeof(float);
  for (size_t i = 0; i < 2 * floats; ++i) {
    memory[i] = 1;
  }
  struct reduction shared = {memory, memory + floats, floats, iterations, 2, 0, 0};
  struct worker workers[2] = {{&shared, 0, 0, 0}, {&shared, 1, 0, 0}};
  pthread_t threads[2];
  double seconds = -1;
  if (start_on(1, &threads[1], reduce_share, &workers[1]) == 0) {
    if (start_on(0, &threads[0], reduce_share, &workers[0]) == 0) {
      pthread_join(threads[0], NULL);
    } else {
      reduce_share(&workers[0]);
    }
    pthread_join(threads[1], NULL);
    double first = workers[0].end - workers[0].begin;
    double second = workers[1].end - workers[1].begin;
    seconds = (first > second ? first : second) / (double)iterations;
  }
  munmap(memory, 2 * bytes);
  return seconds;
}
