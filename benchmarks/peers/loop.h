// The measured loop that every library runs, with the library behind a small table of functions.
//
// A rank stays alive for the whole benchmark and waits for its next command in read(2) on a FIFO of its own. An idle
// library therefore costs no processor time, which is what makes it possible to interleave many libraries on two cores.
//
//   FOLDER/command.R   one line per batch, written by the harness to every rank R:
//                      "<collective> <bytes> <iterations> time" or "<collective> <bytes> <iterations> check" or "quit"
//   FOLDER/result      one line per batch, written by rank 0: "ready <ranks>", "ok <seconds per call> <share>" or
//                      "error <reason>"; <share> is the part of the time in which a rank was kept from its processor
//
// <bytes> is the "size" column of nccl-tests: the whole buffer for allreduce and broadcast, the output of all ranks
// together for allgather, the input of all ranks together for reduce_scatter, and one rank's input for alltoall.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum loop_collective {
  LOOP_ALLREDUCE,
  LOOP_ALLGATHER,
  LOOP_REDUCE_SCATTER,
  LOOP_BROADCAST,
  LOOP_ALLTOALL,
  LOOP_COLLECTIVE_COUNT
};

struct loop_rank {
  int rank;
  int ranks;
  // Two page-aligned buffers of buffer_bytes each. Every collective but alltoall works in place in `buffer`;
  // alltoall reads `buffer` and writes `output`.
  float* buffer;
  float* output;
  size_t buffer_bytes;
};

struct loop_library {
  // Fills in rank and ranks. Returns NULL, or the reason for the failure.
  const char* (*start)(int* argc, char*** argv, struct loop_rank* self);
  // Returns memory for one buffer, page-aligned; NULL when there is none.
  void* (*allocate)(size_t bytes);
  // Runs the collective once. `elements` is the count of floats per rank pair for allgather, reduce_scatter and
  // alltoall, and of the buffer for the others. Returns 0, or the library's own code.
  int (*run)(struct loop_rank* self, enum loop_collective collective, size_t elements);
  // Returns when all ranks have entered.
  int (*barrier)(struct loop_rank* self);
  // Replaces *value with the maximum over all ranks, at least on rank 0.
  int (*maximum)(struct loop_rank* self, double* value);
  void (*stop)(struct loop_rank* self);
  // Where reduce_scatter leaves this rank's block when it works in place, in floats from the start of `buffer`.
  size_t (*scattered_at)(const struct loop_rank* self, size_t elements);
};

// Serves batches until "quit" or the end of the FIFO. argv[1] is FOLDER and argv[2] the largest <bytes>.
int loop_main(const struct loop_library* library, int argc, char** argv);

#ifdef __cplusplus
}
#endif
