// How far apart two processors are just now. Loaded into the harness as a shared library.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
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
