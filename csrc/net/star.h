// The control star of a communicator: who is alive, who failed, and small exchanges. Not for data.
//
// Rank 0's process is the hub; every rank holds one connection to it, served by the watch threads, so that signs of
// life go out while the ranks' own threads compute, or wait. The hub tells everybody of a failure. A rank is dead when
// its connection ends without a goodbye, or when nothing was heard of it for THESEUS_HEARTBEAT_TIMEOUT. When rank 0
// leaves but its process lives on, the hub goes on serving until all have left.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "net/address.h"

namespace theseus {

inline constexpr size_t kMaxGatherBlob = 1 << 20;

// How far a rank is: carried by heartbeats, for messages about who is late.
struct Progress {
  int rank = -1;
  uint64_t request = 0;
  uint32_t signature_hash = 0;
};

class Star {
 public:
  // Joins the star. Rank 0 opens the hub, at its ProcessServer, which is what `hub` names (ignored by rank 0). Returns
  // when the hub has answered; ranks that do not come within the heartbeat timeout count as dead.
  static Result<std::unique_ptr<Star>> connect(const CommId& communicator, int rank, int ranks,
                                               const std::vector<Address>& hub, const Deadline& deadline);
  // As close().
  ~Star();

  // Everybody's blob, by rank; every rank calls it, in the same order. <= kMaxGatherBlob each. Fails with status() once
  // that is not ok, with RemoteError where a rank has left, with Timeout after `timeout_s` (negative: never) or the
  // cancel flag's InvalidUsage. One thread at a time.
  Result<std::vector<std::string>> all_gather(const std::string& blob, double timeout_s);
  Result<std::vector<std::string>> all_gather(const std::string& blob, const Deadline& deadline);

  // Records the failure here and tells all ranks. The first failure wins.
  void fail(const Status& status);
  // Ok, or the first failure this rank learnt of. Cheap enough for polling loops.
  Status status() const;
  bool failed() const;
  // Ranks known to be dead.
  std::vector<int> dead_ranks() const;
  // Ranks that said goodbye: no failure, but nobody needs to wait for them.
  std::vector<int> left_ranks() const;
  // Called on the watch thread at the first failure (at once where it was before), at most once each, and never after
  // close() or drop() returned, unless called from inside a callback. Must not block, nor take a lock
  // under which close() or drop() is called: these wait for it.
  void on_failure(std::function<void(const Status&)> callback);

  // `description`: not empty where this rank has waited in that request for long. Two ranks that wait in the same
  // request with different hashes will wait for ever: the hub fails the communicator, naming both. Request 0: none.
  void set_progress(uint64_t request, uint32_t signature_hash, std::string description = {});
  // The rank that is furthest behind, as of the hub's last heartbeat; rank -1 before the first.
  Progress slowest() const;

  // Leaves in good order: nobody sees a failure. Does not wait for the others. Idempotent.
  void close();
  // Leaves without a word: the others see this rank as dead. For tests, and where a rank cannot go on.
  void drop();

 private:
  struct Leaf;
  explicit Star(std::shared_ptr<Leaf> leaf);
  void leave(bool goodbye);
  std::shared_ptr<Leaf> leaf_;
  uint32_t generation_;
};

}  // namespace theseus
