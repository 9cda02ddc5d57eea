// Proves a plan, whole, before anything runs it: for any number of micro-batches and every interleaving.
//
// Why one abstract run of one micro-batch is enough (DESIGN 4.3; the steps below are what the parts check):
//   - Each end of a connection belongs to one TB, so whatever an instruction waits for stays there once it is there:
//     if one run completes, every run does (verify_run.h).
//   - That run ends with empty connections, so n micro-batches can run one after the other; hence no interleaving of
//     them gets stuck. With LoopOrder::SubPipelines the same holds for (sub-pipeline, micro-batch), as messages stay
//     inside a sub-pipeline and nothing waits for a later one (plan_graph.h).
//   - A rank's memory is touched by its own TBs alone, and all but Scratch is a different memory in each micro-batch.
//     So the accesses of one micro-batch, and for Scratch of two in a row, show every race (races.h).
//   - Without races all runs compute alike, so the values of the one run are the values (values.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "schedule/plan.h"

namespace theseus {

struct VerifyOptions {
  int slots = 8;  // messages that a connection holds at least; 0: rendezvous, and every Send may pass a reference
  bool in_place = true;
  bool out_of_place = true;
  // Every rank that ends with a reduced chunk has reduced it in the same order, so that all have the same bits.
  bool equal_bits = true;
  // Requests may scale what is read from Input (PreMulSum, floating Avg), where the collective reduces.
  bool scaled_input = true;
  // Right for any count. Else only for counts that divide into Plan::chunks_per_block equal chunks: then a plan may
  // park a chunk in the Output of another, as imported ones do.
  bool any_count = false;
  int max_thread_blocks = 0;                // of a rank; 0: any number
  int max_connections = 0;                  // ends of a rank; 0: any number
  uint64_t work_limit = uint64_t{1} << 28;  // instructions, chunks and lookups, before it gives up with an error
};

enum class FaultKind : uint8_t {
  Options,     // nothing was asked for, or nonsense
  Structure,   // an index out of range, ends that disagree, sub-pipelines out of order
  Limit,       // more TBs or connections than allowed
  Deadlock,    // with the given slots
  Rendezvous,  // claims rendezvous_safe (or slots = 0), yet deadlocks without slots
  Race,        // two accesses to a place, one of them a write, that nothing orders
  Value,       // read before written, chunks mixed up, or a wrong result
  TooLarge,    // more work than work_limit allows
};
inline constexpr int kFaultKinds = 8;
// "options", "structure", "limit", "deadlock", "rendezvous", "race", "value", "too_large"
const char* name_of(FaultKind kind);

// An instruction of a micro-batch in an interleaving.
struct Occurrence {
  int32_t rank;
  int32_t tb;
  int32_t step;
  int32_t micro_batch;
  bool operator==(const Occurrence&) const = default;
};

// Why a plan is refused, and a run that shows it. -1: not a matter of one rank, TB, step or chunk.
struct Refusal {
  FaultKind kind = FaultKind::Structure;
  int rank = -1;
  int tb = -1;
  int step = -1;
  Place place;     // whose chunk it is about
  int chunk = -1;  // the algorithm's number of that chunk, where `place` tells it
  std::string text;
  // Instructions in an order in which they can be issued, with connections of `slots` slots (0: rendezvous) and
  // `micro_batches` micro-batches. Deadlock, rendezvous: afterwards nothing can go on. Race: the two accesses are the
  // last two, in an order that the plan does not want; both could begin before either. Value: a complete run.
  // Structure: where ends of a connection count differently, a run that gets stuck or leaves a message over; else
  // empty.
  std::vector<Occurrence> interleaving;
  int slots = 0;
  int micro_batches = 1;
  bool in_place = false;
  // Race: the Send whose reference is still being read when the last of `interleaving` overwrites what it refers to.
  std::optional<Occurrence> reference;
};

// Nothing: the plan ends with `slots` slots or more (and with none, where it claims to be rendezvous_safe); no two
// accesses to a place race, in place or out of place, as ordered by TBs, dependencies and messages alone; nothing is
// read before it is written or after it was overwritten; every chunk of every output holds each rank's contribution
// exactly once; for every number of micro-batches.
std::optional<Refusal> find_fault(const Plan& whole, const VerifyOptions& options = {});

// The same as a Status: InvalidArgument, or InvalidUsage where the plan is too large for the work limit.
Status verify(const Plan& whole, const VerifyOptions& options = {});

}  // namespace theseus
