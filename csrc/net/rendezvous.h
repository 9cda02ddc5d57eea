// How the ranks of a communicator to be find each other.
//
// A unique id holds addresses and a 128-bit nonce. The process that created it serves it on its watch thread: every
// rank sends its blob, and when all are in, everyone gets all blobs, in rank order, and the communicator's id. Whatever
// goes wrong (a rank twice, another number of ranks, a used id, ranks that never come, a rank that dies) reaches
// everyone who joined, in bounded time, as a sentence that names the ranks.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "net/address.h"

namespace theseus {

inline constexpr size_t kMaxRendezvousBlob = 64 * 1024;
inline constexpr int kMaxRanks = 65536;

// A fresh id, served by this process. With NCCL_COMM_ID set: the id of that address, which rank 0 serves.
Result<UniqueId> create_unique_id();

// The id that every rank derives alike, from a nonce they share and the server addresses (ProcessServer::addresses())
// of the process that is to serve: for split and shrink. Needs no call on the serving side, but its ProcessServer
// running with start_rendezvous_service() done (any rendezvous() call does that). May be used again after it is
// complete.
UniqueId derive_unique_id(const Id128& nonce, const std::vector<Address>& addresses);

// Makes this process answer for derived ids. Idempotent.
Status start_rendezvous_service();

struct RendezvousResult {
  CommId communicator;             // fresh, the same on all ranks
  std::vector<std::string> blobs;  // by rank
};

// Joins as `rank` of `ranks` and waits for the others. `must_agree` ("NAME=value;NAME=value") has to be equal on all
// ranks; a difference is named. The deadline bounds the wait for missing ranks; it may carry a cancel flag.
// InvalidArgument: bad rank, ranks, blob, id. InvalidUsage: id used before, rank twice, other number of ranks, settings
// differ, aborted. RemoteError: the serving process or a rank is gone. Timeout: names the ranks that did not join.
Result<RendezvousResult> rendezvous(const UniqueId& id, int rank, int ranks, const std::string& blob,
                                    const Deadline& deadline, const std::string& must_agree = "");

}  // namespace theseus
