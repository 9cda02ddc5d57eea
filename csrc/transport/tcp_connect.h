// Opening one data connection without ever blocking: connect, retry with growing pauses, say hello.
#pragma once

#include <string>

#include "base/result.h"
#include "net/address.h"
#include "net/process_server.h"
#include "net/socket.h"

namespace theseus {

// One direction between two ranks on one rail and channel.
struct TcpRoute {
  int peer = -1;
  std::string host;      // the peer's, for messages
  std::string identity;  // the peer's host, by which its flow is counted
  int rail = 0;
  int channel = 0;
  Address local;   // of our NIC, port 0
  Address remote;  // of the peer's NIC, with its port

  // "rank 3 (node7) over rail 1 (10.0.1.1 - 10.0.1.7:4321)"
  std::string describe() const;
};

class TcpConnector {
 public:
  // `give_up_after`: seconds from the first attempt. `buffer_bytes`: of the socket, each direction.
  TcpConnector(const TcpRoute& route, const Hello& hello, double give_up_after, int buffer_bytes);

  // One step. True once socket() is connected and the hello is out; RemoteError where the peer cannot be reached in
  // time, SystemError where this machine is at fault. Both name peer, rail and addresses.
  Result<bool> advance();
  // What to wait for: this descriptor to become writable (-1: none), or this time (0: none) to pass.
  int fd() const { return socket_.fd(); }
  uint64_t retry_at_ns() const { return socket_.valid() ? 0 : retry_at_ns_; }
  Socket take_socket() { return std::move(socket_); }

 private:
  Status begin();
  Status retry(int error);
  Status say_hello();

  const TcpRoute& route_;
  Hello hello_;
  size_t hello_sent_ = 0;
  Socket socket_;
  bool connected_ = false;
  int buffer_bytes_;
  uint64_t give_up_ns_;
  uint64_t retry_at_ns_ = 0;
  uint64_t pause_ns_;
};

}  // namespace theseus
