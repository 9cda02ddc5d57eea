// What an agreement costs at a size that no machine at hand has: the machines that run in a job, over messages whose
// costs are given.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace theseus {

// Seconds.
struct AgreementCosts {
  double local_message = 0;   // from sent to there, inside a host
  double remote_message = 0;  // between hosts
  double receiving = 0;       // a rank is busy with a message that came
  double sending = 0;         // a rank is busy with a message that goes; they go one after another
};

struct AgreementShape {
  int ranks = 1;
  int ranks_per_host = 1;    // consecutive ranks; the last host may have fewer
  bool changes = false;      // something is to be installed, so there is a second round
  double spread = 0;         // seconds over which ranks get there by themselves, evenly, in no particular order
  bool one_arrives = false;  // only one does (the last rank of the last host), the others are elsewhere
};

struct AgreementRun {
  double latency = 0;        // seconds from the first rank that begins until the last has decided
  double wait = 0;           // seconds that the last rank to get there would wait without a lag
  double mean_messages = 0;  // sent and received, a rank
  uint64_t most_messages = 0;
  uint64_t messages = 0;         // sent by all
  uint64_t remote_messages = 0;  // of them between hosts
};

// One agreement of up to 2^20 ranks. InvalidArgument: a size or cost that cannot be.
Result<AgreementRun> run_agreement(const AgreementShape& shape, const AgreementCosts& costs);

}  // namespace theseus
