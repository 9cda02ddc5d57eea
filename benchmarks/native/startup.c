// How long ranks that are up need until a communicator is there and has done its first all-reduce.
//
//   startup RANKS REPETITIONS    prints one line a repetition: "<seconds in all> <seconds until the last was ready>"
//
// The clock starts when the last rank has said that it is about to call ncclCommInitRank, and stops when the last one
// has its result. Each repetition has new processes, so everything that a process does once is counted.
#include <stdio.h>
#include <stdlib.h>

#include "ranks.h"

enum { BEGIN, READY, DONE };

static void first_all_reduce(struct rank* self) {
  const ncclUniqueId id = ranks_unique_id(self);
  ncclComm_t communicator = NULL;
  float value = 1;
  self->notes[BEGIN] = now_seconds();  // before the wait: that the others must be woken is counted
  ranks_wait(self);
  ranks_demand(self, "ncclCommInitRank", ncclCommInitRank(&communicator, self->ranks, id, self->rank));
  self->notes[READY] = now_seconds();
  ranks_demand(self, "ncclAllReduce", ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, communicator, NULL));
  self->notes[DONE] = now_seconds();
  if (value != (float)self->ranks) {
    fprintf(stderr, "rank %d: the sum of %d ones is %g\n", self->rank, self->ranks, (double)value);
    exit(1);
  }
  ranks_demand(self, "ncclCommDestroy", ncclCommDestroy(communicator));
}

static double latest(double notes[][RANKS_NOTES], int ranks, int which) {
  double last = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    last = notes[rank][which] > last ? notes[rank][which] : last;
  }
  return last;
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s RANKS REPETITIONS\n", argv[0]);
    return 2;
  }
  const int ranks = atoi(argv[1]);
  static double notes[RANKS_MOST][RANKS_NOTES];
  for (int repetition = 0; repetition < atoi(argv[2]); ++repetition) {
    if (ranks_run(ranks, 60, first_all_reduce, notes[0]) != 0) {
      return 1;
    }
    const double begin = latest(notes, ranks, BEGIN);
    printf("%.6f %.6f\n", latest(notes, ranks, DONE) - begin, latest(notes, ranks, READY) - begin);
    fflush(stdout);
  }
  return 0;
}
