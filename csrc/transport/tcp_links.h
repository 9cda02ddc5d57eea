// The TCP connections of one communicator: to every peer on another host, over every rail.
//
// A connection carries one direction (src to dst) on one rail and channel; the sender opens it at first use. Nothing
// blocks: progress() moves what can move, wait() sleeps until something may.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "net/address.h"
#include "net/interfaces.h"
#include "transport/port.h"

namespace theseus {

struct TcpPeer {
  int rank = 0;
  std::string host;            // for messages
  std::vector<Address> rails;  // where to reach it, by rail, with its ProcessServer's port
  std::string identity;        // its host's host_identity(), by which flows are counted; empty: `host`
};

class TcpLinks {
 public:
  // `peers` by rank (the own entry is unused); `nics`: this rank's rails. Messages are at most `slot_bytes` long,
  // and `slots` of them fit into each end's ring.
  TcpLinks(const CommId& communicator, int rank, std::vector<TcpPeer> peers, std::vector<Nic> nics, size_t slot_bytes,
           int slots);
  ~TcpLinks();

  // Registers this rank for incoming data connections.
  Status open();
  // Made at first use; `rail` is taken modulo the rails both ends have.
  Result<SendPort*> send_port(int peer, int rail, int channel);
  Result<RecvPort*> recv_port(int peer, int rail, int channel);

  // Moves what can move on all connections. RemoteError: the first dead one, naming peer and rail.
  Status progress();
  // Sleeps until a socket is ready, a pacing token is due, a connection came in, or `nanoseconds` are over.
  void wait(long nanoseconds);
  // Until everything committed is handed to the kernel.
  Status flush(const Deadline& deadline);
  // Whether anything that was committed is not handed to the kernel yet.
  bool pending() const;
  // True where no connection was asked for yet.
  bool empty() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace theseus
