// Memory of GPUs that the ranks of a host share: for every peer and channel a rank has a block in its device's memory,
// which kernels of both may write to. What a block holds is the executor's business.
//
// Inside a process a peer takes the very pointer; between processes it asks the owner's ProcessServer for an IPC
// handle, which the watch thread answers, so that nobody waits for a peer's own thread. Blocks of channel 0 are one
// allocation made at open(); those of other channels are made when either end first asks.
//
// A block that was handed out inside the process stays as long as either end holds it. Exported ones stay until the
// owner's P2pLinks end: kernels touch a peer's block only in requests that the peer takes part in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "drivers/cuda/api.h"

namespace theseus {

struct P2pPeer {
  Id128 process;
  std::string host_name;
  std::string unix_name;  // of its ProcessServer
  bool local = false;     // on this host
};

class P2pLinks {
 public:
  // `peers` by rank, this rank's own too. `block_bytes`: equal on all ranks. From here on peers may ask for blocks.
  static Result<std::unique_ptr<P2pLinks>> open(const CommId& communicator, int rank, cuda::Driver& driver, int device,
                                                std::vector<P2pPeer> peers, size_t block_bytes);
  ~P2pLinks();
  P2pLinks(const P2pLinks&) = delete;
  P2pLinks& operator=(const P2pLinks&) = delete;

  // This rank's block for `peer`, zero when it is new. InternalError: a peer on another host.
  Result<void*> own_block(int peer, int channel);
  // The block that `peer` has for this rank, as this rank's device sees it.
  Result<void*> peer_block(int peer, int channel);

  // Whether `peer` is on this host: the others have no blocks here.
  bool is_local(int peer) const { return peers_[static_cast<size_t>(peer)].local; }
  size_t block_bytes() const { return block_bytes_; }
  // Of blocks that lie here.
  size_t bytes() const;

 private:
  class Inbox;
  using Channel = std::pair<int, int>;  // peer, channel

  P2pLinks(const CommId& communicator, int rank, cuda::Driver& driver, int device, std::vector<P2pPeer> peers,
           size_t block_bytes);
  Status check(int peer) const;
  Result<void*> take_inside(int peer, int channel);
  Result<void*> take_between(int peer, int channel);

  CommId communicator_;
  int rank_;
  cuda::Driver& driver_;
  int device_;
  std::vector<P2pPeer> peers_;
  size_t block_bytes_;
  std::shared_ptr<Inbox> inbox_;
  std::map<Channel, void*> known_;                      // of peers
  std::map<int, std::shared_ptr<Inbox>> held_;          // of peers in this process
  std::map<std::pair<int, uint64_t>, void*> imported_;  // by peer and number of the allocation
};

}  // namespace theseus
