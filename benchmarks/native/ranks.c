#define _GNU_SOURCE
#include "ranks.h"

#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct rank_page {
  _Atomic uint32_t arrived;
  _Atomic uint32_t turn;
  ncclUniqueId id;
  double notes[RANKS_MOST][RANKS_NOTES];
};

double now_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void ranks_wait(const struct rank* self) {
  struct rank_page* page = self->page;
  const uint32_t turn = atomic_load(&page->turn);
  if (atomic_fetch_add(&page->arrived, 1) + 1 == (uint32_t)self->ranks) {
    atomic_store(&page->arrived, 0);
    atomic_fetch_add(&page->turn, 1);
    syscall(SYS_futex, &page->turn, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return;
  }
  while (atomic_load(&page->turn) == turn) {
    syscall(SYS_futex, &page->turn, FUTEX_WAIT, turn, NULL, NULL, 0);
  }
}

void ranks_demand(const struct rank* self, const char* step, ncclResult_t code) {
  if (code != ncclSuccess) {
    fprintf(stderr, "rank %d: %s: %s (%s)\n", self->rank, step, ncclGetErrorString(code), ncclGetLastError(NULL));
    exit(1);
  }
}

ncclUniqueId ranks_unique_id(const struct rank* self) {
  if (self->rank == 0) {
    ranks_demand(self, "ncclGetUniqueId", ncclGetUniqueId(&self->page->id));
  }
  ranks_wait(self);
  const ncclUniqueId id = self->page->id;
  ranks_wait(self);
  return id;
}

// A rank that fails takes the others with it, since they would wait for it.
static int reap(const pid_t* children, int ranks, double deadline) {
  int failed = 0;
  for (int left = ranks; left > 0;) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, WNOHANG);
    if (ended > 0) {
      --left;
      failed |= status != 0;
    } else {
      usleep(500);
    }
    if (failed || now_seconds() > deadline) {
      failed = 1;
      for (int rank = 0; rank < ranks; ++rank) {
        kill(children[rank], SIGKILL);
      }
      while (waitpid(-1, NULL, 0) > 0) {
      }
      return failed;
    }
  }
  return failed;
}

int ranks_run(int ranks, double seconds, void (*body)(struct rank* self), double* notes) {
  struct rank_page* page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pid_t children[RANKS_MOST];
  if (ranks < 1 || ranks > RANKS_MOST || page == MAP_FAILED) {
    fprintf(stderr, "cannot start %d ranks\n", ranks);
    return 1;
  }
  const pid_t parent = getpid();
  for (int rank = 0; rank < ranks; ++rank) {
    children[rank] = fork();
    if (children[rank] == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      struct rank self = {rank, ranks, page->notes[rank], page};
      if (getppid() == parent) {
        body(&self);
      }
      exit(0);
    }
    if (children[rank] < 0) {
      perror("fork");
      for (int started = 0; started < rank; ++started) {
        kill(children[started], SIGKILL);
      }
      return 1;
    }
  }
  const int failed = reap(children, ranks, now_seconds() + seconds);
  memcpy(notes, page->notes, (size_t)ranks * sizeof page->notes[0]);
  munmap(page, sizeof *page);
  return failed;
}
