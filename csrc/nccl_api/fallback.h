// What the real NCCL does instead of us, on a communicator of its own beside each of ours: operations that
// THESEUS_FALLBACK names (the same on all ranks: compared when they meet), and what only it has (forward.h).
//
// The twin is made when the first call comes that every rank of the communicator makes; where SendRecv is in
// THESEUS_FALLBACK, which few ranks take part in, when the communicator is made. In a group these calls run at its end,
// after ours, in one group of the real NCCL's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "nccl_api/groups.h"
#include "nccl_api/include/nccl.h"
#include "nccl_api/real_nccl.h"
#include "runtime/communicator.h"

namespace theseus::nccl_api {

// A set of Collective, as bits; read from the setting whenever a communicator is handed out.
inline std::atomic<uint32_t> fallback_operations{0};
void read_fallback();

inline bool falls_back(Collective collective) {
  return (fallback_operations.load(std::memory_order_relaxed) >> static_cast<int>(collective) & 1) != 0;
}
// The same of one communicator's: all of it where the network is the real NCCL's (THESEUS_NET). Not SendRecv where
// there was no moment at which all ranks could make the twin.
inline bool falls_back(const Communicator& communicator, Collective collective) {
  return falls_back(collective) ||
         (communicator.forwards() && (collective != Collective::SendRecv || communicator.blocking()));
}

// One call: what its function was given, null and 0 where it has no such parameter.
struct ForwardedCall {
  const char* function;
  Collective collective;
  bool sends = false;  // of SendRecv: ncclSend
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclInt8;
  int op = 0;
  int root = 0;  // the peer, of SendRecv
  cudaStream_t stream = nullptr;
};

// One call of a communicator's for its twin.
struct ForTwin {
  const char* function;
  bool everyone = false;  // every rank of the communicator makes it, so the twin can be made for it
  std::function<Status(const RealNccl&, ncclComm_t twin)> run;
  std::function<void()> after = {};      // once it was done, in a group at its end
  std::function<Status()> without = {};  // instead, where all ranks found that they have no twin; empty: it fails
};

// Each runs now, or at the end of the open group.
ncclResult_t give_to_twin(Communicator* communicator, ForTwin call);
ncclResult_t forward(Communicator* communicator, const ForwardedCall& call);

// At the outermost end of a group: runs what was kept for it, or forgets it where `run` is false, since ours failed.
Status end_forwarded_group(bool run);

// Makes the twins that are needed before the first call (SendRecv), for communicators that are ready.
Status make_early_twins(const std::vector<Communicator*>& communicators);

// Ends a communicator and its twin.
Status end_both(Communicator* communicator, Ending ending);

// What the twin says is wrong with it; Ok where there is none.
Status twin_error(const Communicator* communicator);

}  // namespace theseus::nccl_api
