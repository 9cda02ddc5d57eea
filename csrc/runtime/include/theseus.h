/* What Theseus adds to NCCL: the context from which every communicator of a job selects its schedules.
 *
 * Link with libtheseus.so.0 (pkg-config nccl names its folder). Calls return at once and never hold up a collective;
 * what they publish takes effect on all ranks of a communicator before one and the same request. theseusContextSync
 * says whether it was taken. Results are ncclResult_t values: 0 is success, ncclInvalidArgument what is malformed; the
 * message is theseusGetLastError's.
 */
#ifndef THESEUS_H_
#define THESEUS_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What moves an attribute. */
typedef enum {
  theseusExogenous = 0,  /* theseusSetExo */
  theseusRequests = 1,   /* counts requests of the communicator */
  theseusAgreements = 2, /* counts agreements */
  theseusSeconds = 3,    /* seconds since it was installed, as agreed */
  theseusSmooth = 4,     /* at each agreement: value += first * (source - value) */
  theseusHysteresis = 5, /* 1 from when source falls below first until it rises above second */
  theseusDwell = 6       /* follows source, at most one change in first seconds */
} theseusHook_t;

/* Defines an attribute of `length` numbers (1: a number, not an array), all `initial`. `source`: the attribute that
 * Smooth, Hysteresis and Dwell follow; NULL else. Names are letters, digits, and . _ - : */
int theseusNewAttr(const char* name, theseusHook_t hook, uint32_t length, double initial, const char* source,
                   double first, double second);

/* Sets `count` elements of an exogenous attribute, all in one version. `indices` NULL: elements 0 to count - 1. */
int theseusSetExo(const char* name, size_t count, const uint32_t* indices, const double* values);

typedef struct {
  const char* name;
  int collective; /* 0 AllReduce, 1 AllGather, 2 ReduceScatter, 3 Broadcast, 4 Reduce, 5 AllToAll, 6 Gather, 7 Scatter
                   */
  int root;       /* of rooted collectives; -1: any */
  const char* algorithm; /* a built-in algorithm; NULL: the plan */
  const void* plan;      /* a plan file (resccl compile), and its length */
  size_t plan_bytes;
  const char* usable;   /* policy; NULL: always */
  const char* score;    /* policy; NULL: 0 */
  const char* replaces; /* name of the schedule that it adapts; NULL: none */
} theseusSched_t;

int theseusNewSched(const theseusSched_t* schedule);
int theseusRemoveSched(const char* name);

/* Waits until everything this process published is in the job's log, or refused; `seconds` < 0: for ever. The first
 * refusal since the last call, if any. */
int theseusContextSync(double seconds);

/* The message of this thread's last failing theseus* call; "" where there was none. */
const char* theseusGetLastError(void);

#ifdef __cplusplus
}
#endif

#endif /* THESEUS_H_ */
