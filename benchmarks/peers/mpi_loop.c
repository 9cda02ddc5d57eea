// The loop of loop.h on any MPI. Compiled once for each MPI, with that MPI's own mpi.h.
#include <mpi.h>
#include <stdlib.h>

#include "loop.h"

static const char* start(int* argc, char*** argv, struct loop_rank* self) {
  if (MPI_Init(argc, argv) != MPI_SUCCESS) {
    return "MPI_Init failed";
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &self->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &self->ranks);
  return NULL;
}

static void* allocate(size_t bytes) {
  void* memory = NULL;
  return posix_memalign(&memory, 4096, bytes) == 0 ? memory : NULL;
}

static int run(struct loop_rank* self, enum loop_collective collective, size_t elements) {
  int count = (int)elements;
  switch (collective) {
    case LOOP_ALLREDUCE: return MPI_Allreduce(MPI_IN_PLACE, self->buffer, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    case LOOP_ALLGATHER:
      return MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, self->buffer, count, MPI_FLOAT, MPI_COMM_WORLD);
    case LOOP_REDUCE_SCATTER:
      return MPI_Reduce_scatter_block(MPI_IN_PLACE, self->buffer, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    case LOOP_BROADCAST: return MPI_Bcast(self->buffer, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    case LOOP_ALLTOALL:
      return MPI_Alltoall(self->buffer, count, MPI_FLOAT, self->output, count, MPI_FLOAT, MPI_COMM_WORLD);
    default: return MPI_ERR_ARG;
  }
}

static int barrier(struct loop_rank* self) {
  (void)self;
  return MPI_Barrier(MPI_COMM_WORLD);
}

static int maximum(struct loop_rank* self, double* value) {
  (void)self;
  return MPI_Allreduce(MPI_IN_PLACE, value, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

static void stop(struct loop_rank* self) {
  (void)self;
  MPI_Finalize();
}

// MPI leaves the scattered block at the start of the receive buffer.
static size_t scattered_at(const struct loop_rank* self, size_t elements) {
  (void)self;
  (void)elements;
  return 0;
}

int main(int argc, char** argv) {
  const struct loop_library library = {start, allocate, run, barrier, maximum, stop, scattered_at};
  return loop_main(&library, argc, argv);
}
