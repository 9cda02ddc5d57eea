// What a communicator holds in memory, by the kernel's account.
//
//   memory RANKS BYTES    prints one line a stage: "<stage> <private bytes a rank> <shared bytes a rank>"
//
// Stages: "idle", a communicator that has run nothing; "used", after an all-reduce of BYTES; "second", another idle
// communicator beside the first, without what a process holds once. Private is anonymous memory. Shared memory is
// counted once, however many ranks use it: every rank by its share of each page (Pss). Program text does not count, nor
// do the caller's buffers, which are in use before the first reading.
#include <stdio.h>
#include <stdlib.h>

#include "ranks.h"

// Notes of a rank: two numbers a stage.
enum { PRIVATE, SHARED, PER_STAGE };
enum { BASE, IDLE, USED, SECOND, STAGES };

static size_t buffer_bytes;

static void read_into(struct rank* self, int stage) {
  char line[256];
  ranks_wait(self);
  FILE* file = fopen("/proc/self/smaps_rollup", "r");
  if (file == NULL) {
    fprintf(stderr, "/proc/self/smaps_rollup cannot be read\n");
    exit(1);
  }
  double* notes = self->notes + stage * PER_STAGE;
  while (fgets(line, sizeof line, file) != NULL) {
    double kilobytes = 0;
    if (sscanf(line, "Pss_Anon: %lf", &kilobytes) == 1) {
      notes[PRIVATE] = 1024 * kilobytes;
    } else if (sscanf(line, "Pss_Shmem: %lf", &kilobytes) == 1) {
      notes[SHARED] = 1024 * kilobytes;
    }
  }
  fclose(file);
  ranks_wait(self);
}

static ncclComm_t join(struct rank* self) {
  const ncclUniqueId id = ranks_unique_id(self);
  ncclComm_t communicator = NULL;
  ranks_demand(self, "ncclCommInitRank", ncclCommInitRank(&communicator, self->ranks, id, self->rank));
  return communicator;
}

static void stages(struct rank* self) {
  float* buffer = malloc(buffer_bytes);
  if (buffer == NULL) {
    fprintf(stderr, "no memory for a buffer of %zu bytes\n", buffer_bytes);
    exit(1);
  }
  for (size_t i = 0; i < buffer_bytes / sizeof(float); ++i) {
    buffer[i] = 1;
  }
  read_into(self, BASE);
  ncclComm_t first = join(self);
  read_into(self, IDLE);
  ranks_demand(self, "ncclAllReduce",
               ncclAllReduce(buffer, buffer, buffer_bytes / sizeof(float), ncclFloat32, ncclSum, first, NULL));
  if (buffer[0] != (float)self->ranks) {
    fprintf(stderr, "rank %d: the sum of %d ones is %g\n", self->rank, self->ranks, (double)buffer[0]);
    exit(1);
  }
  read_into(self, USED);
  ncclComm_t second = join(self);
  read_into(self, SECOND);
  ranks_demand(self, "ncclCommDestroy", ncclCommDestroy(second));
  ranks_demand(self, "ncclCommDestroy", ncclCommDestroy(first));
}

static double mean_growth(double notes[][RANKS_NOTES], int ranks, int from, int to, int which) {
  double sum = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    sum += notes[rank][to * PER_STAGE + which] - notes[rank][from * PER_STAGE + which];
  }
  return sum / ranks;
}

static void print_stage(double notes[][RANKS_NOTES], int ranks, const char* name, int from, int to) {
  printf("%s %.0f %.0f\n", name, mean_growth(notes, ranks, from, to, PRIVATE),
         mean_growth(notes, ranks, from, to, SHARED));
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s RANKS BYTES\n", argv[0]);
    return 2;
  }
  const int ranks = atoi(argv[1]);
  buffer_bytes = strtoull(argv[2], NULL, 10);
  static double notes[RANKS_MOST][RANKS_NOTES];
  if (ranks_run(ranks, 120, stages, notes[0]) != 0) {
    return 1;
  }
  print_stage(notes, ranks, "idle", BASE, IDLE);
  print_stage(notes, ranks, "used", BASE, USED);
  print_stage(notes, ranks, "second", USED, SECOND);
  return 0;
}
