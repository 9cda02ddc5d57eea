// Two or more ranks of one communicator inside this process, connected by TCP over addresses of the loopback network.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "net/process_server.h"
#include "transport/tcp_links.h"

namespace theseus::testing {

inline Nic loopback_nic(int rail) { return {"lo", {Address::parse("127.0.0." + std::to_string(rail + 1)).value()}}; }

class TcpWorld {
 public:
  TcpWorld(int ranks, int rails, size_t slot_bytes, int slots) : communicator(random_id()) {
    Result<ProcessServer*> server = ProcessServer::get();
    EXPECT_TRUE(server.ok()) << server.status().message();
    for (int rail = 0; rail < rails; ++rail) nics.push_back(loopback_nic(rail));
    for (int rank = 0; rank < ranks; ++rank) {
      TcpPeer peer;
      peer.rank = rank;
      peer.host = "host" + std::to_string(rank);
      for (const Nic& nic : nics) peer.rails.push_back(nic.addresses[0].with_port((*server)->port()));
      peers.push_back(peer);
    }
    for (int rank = 0; rank < ranks; ++rank) {
      links.push_back(std::make_unique<TcpLinks>(communicator, rank, peers, nics, slot_bytes, slots));
      const Status opened = links.back()->open();
      EXPECT_TRUE(opened.ok()) << opened.message();
    }
  }

  // Pretends to be `source` on a data connection to `destination`, to say what no sound peer would.
  Socket impersonate(int source, int destination, int rail = 0, int channel = 0) const {
    Hello hello;
    hello.communicator = communicator;
    hello.purpose = Purpose::Data;
    hello.source = source;
    hello.destination = destination;
    hello.rail = rail;
    hello.channel = channel;
    Result<Socket> socket = ProcessServer::connect({peers[destination].rails[rail]}, hello, Deadline::after(10));
    EXPECT_TRUE(socket.ok());
    return std::move(*socket);
  }

  CommId communicator;
  std::vector<Nic> nics;
  std::vector<TcpPeer> peers;
  std::vector<std::unique_ptr<TcpLinks>> links;
};

// Waits until there is a message or the links fail.
inline Result<const Message*> await_message(TcpLinks& links, RecvPort& port, double seconds = 30) {
  const Deadline deadline = Deadline::after(seconds);
  for (;;) {
    if (const Message* message = port.peek(); message != nullptr) return message;
    THESEUS_TRY(links.progress());
    if (deadline.expired()) return deadline.status("waiting for a message");
    links.wait(1'000'000);
  }
}

inline Status await_failure(TcpLinks& links, RecvPort& port) {
  Result<const Message*> message = await_message(links, port);
  return message.ok() ? Status() : message.status();
}

inline SignatureTag tag_of(uint64_t count, uint32_t request) {
  SignatureTag tag;
  tag.signature.count = count;
  tag.signature.request = request;
  tag.base = base_hash(tag.signature);
  tag.hash = request_hash(tag.base, request);
  return tag;
}

}  // namespace theseus::testing
