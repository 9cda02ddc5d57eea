#define _GNU_SOURCE
#include "loop.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static const char* const kNames[LOOP_COLLECTIVE_COUNT] = {"allreduce", "allgather", "reduce_scatter", "broadcast",
                                                          "alltoall"};

static double now_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// Seconds for which this thread was ready to run and something else had the processor; 0 where Linux does not count it.
static double kept_waiting_seconds(void) {
  unsigned long long running = 0;
  unsigned long long waiting = 0;
  FILE* file = fopen("/proc/self/schedstat", "r");
  if (file != NULL) {
    if (fscanf(file, "%llu %llu", &running, &waiting) != 2) {
      waiting = 0;
    }
    fclose(file);
  }
  return 1e-9 * (double)waiting;
}

// Floats per rank pair, or of the whole buffer. A size that is smaller than one float a rank is rounded up to that.
static size_t elements_of(enum loop_collective collective, size_t bytes, int ranks) {
  size_t floats = bytes / sizeof(float);
  if (collective == LOOP_ALLREDUCE || collective == LOOP_BROADCAST) {
    return floats > 0 ? floats : 1;
  }
  size_t block = floats / (size_t)ranks;
  return block > 0 ? block : 1;
}

static size_t touched_floats(const struct loop_rank* self, enum loop_collective collective, size_t elements) {
  int whole = collective == LOOP_ALLREDUCE || collective == LOOP_BROADCAST;
  return whole ? elements : elements * (size_t)self->ranks;
}

// What rank `rank` puts at place `index`: small whole numbers, so that a sum of floats is exact in any order.
static float sample(int rank, size_t index) { return (float)((size_t)(rank + 1) * 3 + index % 977); }

static float sample_sum(int ranks, size_t index) {
  float sum = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    sum += sample(rank, index);
  }
  return sum;
}

static void fill(struct loop_rank* self, size_t floats) {
  for (size_t i = 0; i < floats; ++i) {
    self->buffer[i] = sample(self->rank, i);
    self->output[i] = -1;
  }
}

static size_t wrong_in(const struct loop_rank* self, enum loop_collective collective, size_t elements, size_t at) {
  size_t wrong = 0;
  for (size_t i = 0; i < elements; ++i) {
    if (collective == LOOP_ALLREDUCE) {
      wrong += self->buffer[i] != sample_sum(self->ranks, i);
    } else if (collective == LOOP_BROADCAST) {
      wrong += self->buffer[i] != sample(0, i);
    } else if (collective == LOOP_REDUCE_SCATTER) {
      wrong += self->buffer[at + i] != sample_sum(self->ranks, (size_t)self->rank * elements + i);
    }
  }
  for (int peer = 0; peer < self->ranks; ++peer) {
    size_t block = (size_t)peer * elements;
    for (size_t i = 0; i < elements; ++i) {
      if (collective == LOOP_ALLGATHER) {
        wrong += self->buffer[block + i] != sample(peer, block + i);
      } else if (collective == LOOP_ALLTOALL) {
        wrong += self->output[block + i] != sample(peer, (size_t)self->rank * elements + i);
      }
    }
  }
  return wrong;
}

struct batch {
  enum loop_collective collective;
  size_t elements;
  long iterations;
  int check;
};

static int parse(const char* line, const struct loop_rank* self, struct batch* batch) {
  char name[32];
  char mode[16];
  unsigned long long bytes = 0;
  if (sscanf(line, "%31s %llu %ld %15s", name, &bytes, &batch->iterations, mode) != 4 || batch->iterations < 1) {
    return -1;
  }
  int found = -1;
  for (int i = 0; i < LOOP_COLLECTIVE_COUNT; ++i) {
    if (strcmp(name, kNames[i]) == 0) {
      found = i;
    }
  }
  if (found < 0) {
    return -1;
  }
  batch->collective = (enum loop_collective)found;
  batch->elements = elements_of(batch->collective, bytes, self->ranks);
  batch->check = strcmp(mode, "check") == 0;
  size_t needed = sizeof(float) * touched_floats(self, batch->collective, batch->elements);
  return needed <= self->buffer_bytes ? 0 : -1;
}

static int check_once(const struct loop_library* library, struct loop_rank* self, const struct batch* batch,
                      double* wrong) {
  fill(self, touched_floats(self, batch->collective, batch->elements));
  int code = library->barrier(self);
  if (code == 0) {
    code = library->run(self, batch->collective, batch->elements);
  }
  if (code == 0) {
    size_t at = library->scattered_at(self, batch->elements);
    *wrong = (double)wrong_in(self, batch->collective, batch->elements, at);
    code = library->maximum(self, wrong);
  }
  return code;
}

static int run_many(const struct loop_library* library, struct loop_rank* self, const struct batch* batch, long times) {
  int code = 0;
  for (long i = 0; i < times && code == 0; ++i) {
    code = library->run(self, batch->collective, batch->elements);
  }
  return code;
}

// One fifth of the iterations warms up, at most 1,000 calls: the caches and pools of the library have been cold since
// its last batch.
static int time_batch(const struct loop_library* library, struct loop_rank* self, const struct batch* batch,
                      double* seconds, double* share) {
  long warmup = batch->iterations / 5 + 1;
  int code = library->barrier(self);
  if (code == 0) {
    code = run_many(library, self, batch, warmup < 1000 ? warmup : 1000);
  }
  if (code == 0) {
    code = library->barrier(self);
  }
  double waited = kept_waiting_seconds();
  double begin = now_seconds();
  if (code == 0) {
    code = run_many(library, self, batch, batch->iterations);
  }
  double whole = now_seconds() - begin;
  *seconds = whole / (double)batch->iterations;
  *share = (kept_waiting_seconds() - waited) / whole;
  if (code == 0) {
    code = library->maximum(self, share);
  }
  return code == 0 ? library->maximum(self, seconds) : code;
}

static void serve(const struct loop_library* library, struct loop_rank* self, FILE* commands, FILE* results) {
  char line[256];
  while (fgets(line, sizeof line, commands) != NULL && strncmp(line, "quit", 4) != 0) {
    struct batch batch;
    double value = 0;
    double share = 0;
    int code = 0;
    const char* problem = NULL;
    if (parse(line, self, &batch) != 0) {
      problem = "cannot run this command";
    } else if (batch.check) {
      code = check_once(library, self, &batch, &value);
      problem = value > 0 ? "wrong result" : NULL;
    } else {
      code = time_batch(library, self, &batch, &value, &share);
    }
    if (results == NULL) {
      continue;
    }
    if (code != 0) {
      fprintf(results, "error code %d from %s", code, line);
    } else if (problem != NULL) {
      fprintf(results, "error %s: %s", problem, line);
    } else {
      fprintf(results, "ok %.9e %.4f\n", value, share);
    }
    fflush(results);
  }
}

// Puts this rank before the other work of a busy machine, if THESEUS_BENCH_AHEAD is set; needs root. Sessions share the
// processors equally whatever their nice values, and launchers make sessions, so the rank moves its own session too.
static int go_ahead(void) {
  if (getenv("THESEUS_BENCH_AHEAD") == NULL) {
    return 0;
  }
  FILE* session = fopen("/proc/self/autogroup", "w");
  if (session != NULL) {
    fputs("-20", session);
    // Ranks of one session repeat each other's setting, and Linux turns down a repetition that comes too soon.
    fclose(session);
  }
  return setpriority(PRIO_PROCESS, 0, -15);
}

static FILE* open_in(const char* folder, const char* name, int rank, const char* mode) {
  char path[4096];
  snprintf(path, sizeof path, rank < 0 ? "%s/%s" : "%s/%s.%d", folder, name, rank);
  FILE* file = fopen(path, mode);
  if (file == NULL) {
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
  }
  return file;
}

int loop_main(const struct loop_library* library, int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: %s FOLDER LARGEST_BYTES\n", argv[0]);
    return 2;
  }
  if (go_ahead() != 0) {
    fprintf(stderr, "cannot go ahead of other work: %s\n", strerror(errno));
    return 1;
  }
  struct loop_rank self;
  memset(&self, 0, sizeof self);
  const char* problem = library->start(&argc, &argv, &self);
  if (problem != NULL) {
    fprintf(stderr, "start: %s\n", problem);
    return 1;
  }
  FILE* commands = open_in(argv[1], "command", self.rank, "r");
  FILE* results = self.rank == 0 ? open_in(argv[1], "result", -1, "w") : NULL;
  if (commands == NULL || (self.rank == 0 && results == NULL)) {
    return 1;
  }
  size_t smallest = sizeof(float) * (size_t)self.ranks;
  size_t largest = strtoull(argv[2], NULL, 10);
  self.buffer_bytes = largest > smallest ? largest : smallest;
  self.buffer = library->allocate(self.buffer_bytes);
  self.output = library->allocate(self.buffer_bytes);
  if (self.buffer == NULL || self.output == NULL) {
    fprintf(stderr, "no memory for two buffers of %zu bytes\n", self.buffer_bytes);
    return 1;
  }
  fill(&self, self.buffer_bytes / sizeof(float));
  if (results != NULL) {
    fprintf(results, "ready %d\n", self.ranks);
    fflush(results);
  }
  serve(library, &self, commands, results);
  library->stop(&self);
  return 0;
}
