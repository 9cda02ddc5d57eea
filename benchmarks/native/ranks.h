// Rank processes for the benchmarks that watch a communicator from its very beginning.
//
// The ranks are forked from a process that has not used the library yet, and share a page with it. So they are up, and
// can wait for each other and hand on the unique id, without a call of the library.
#pragma once

#include <nccl.h>
#include <stddef.h>

enum { RANKS_MOST = 256, RANKS_NOTES = 16 };

struct rank_page;

// One rank, as its body sees it. `notes` holds RANKS_NOTES numbers of this rank that the parent can read.
struct rank {
  int rank;
  int ranks;
  double* notes;
  struct rank_page* page;
};

double now_seconds(void);

// Returns when all ranks have called it.
void ranks_wait(const struct rank* self);

// A new unique id, made by rank 0 and handed to all; all ranks call it. Ends the process
// with a message on standard error on failure.
ncclUniqueId ranks_unique_id(const struct rank* self);

// Ends the process with a message on standard error unless `code` is ncclSuccess.
void ranks_demand(const struct rank* self, const char* step, ncclResult_t code);

// Forks `ranks` processes that run `body`, and waits for their ends. `notes` receives RANKS_NOTES numbers a rank.
// Returns 0, or 1 if a rank failed or `seconds` have passed; no rank is left then.
int ranks_run(int ranks, double seconds, void (*body)(struct rank* self), double* notes);
