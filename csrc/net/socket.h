// TCP and Unix sockets with deadlines. All descriptors are close-on-exec and non-blocking; waiting is by poll().
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"
#include "net/address.h"

namespace theseus {

class Socket {
 public:
  Socket() = default;
  explicit Socket(Fd fd) : fd_(std::move(fd)) {}

  // TCP with TCP_NODELAY. `source`: local address to bind to first (port 0), where valid. RemoteError: refused or
  // unreachable; Timeout; SystemError: no descriptors and the like. Each names the address.
  static Result<Socket> connect(const Address& to, const Deadline& deadline, const Address& source = {});
  // The first of `to` that answers.
  static Result<Socket> connect_any(const std::vector<Address>& to, const Deadline& deadline);
  // TCP listener. IPv6 any-address listens for IPv4 too.
  static Result<Socket> listen(const Address& at, int backlog = 1024);
  // Abstract Unix stream sockets (no file, gone with the process); `name` without the leading zero byte.
  static Result<Socket> connect_unix(const std::string& name, const Deadline& deadline);
  static Result<Socket> listen_unix(const std::string& name);
  // Both ends of a connection inside this process.
  static Result<std::pair<Socket, Socket>> pair();

  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  Fd take_fd() { return std::move(fd_); }
  void close() { fd_.reset(); }

  Result<Socket> accept(const Deadline& deadline) const;
  // Invalid for Unix sockets.
  Address local_address() const;
  Address remote_address() const;

  // RemoteError where the peer closed or reset; Timeout at the deadline.
  Status send_all(const void* data, size_t bytes, const Deadline& deadline) const;
  Status recv_all(void* data, size_t bytes, const Deadline& deadline) const;

  // For data connections: cubic where permitted, a second at most between tries of what is lost (from Linux 6.15 on),
  // for ten minutes, buffer sizes (0: the kernel's). Best effort.
  void set_data_options(int buffer_bytes) const;

  // One descriptor with up to 4096 bytes along, over a Unix socket.
  Status send_descriptor(int descriptor, const void* data, size_t bytes, const Deadline& deadline) const;
  // Receives exactly `bytes` bytes and the descriptor that came with the first of them. RemoteError where none came.
  Result<Fd> recv_descriptor(void* data, size_t bytes, const Deadline& deadline) const;
  // Whether the peer has closed, or is gone. What it sent before may still be there to read.
  bool ended() const;
  // Whether the process at the other end of this Unix socket runs under our effective user id.
  bool peer_is_same_user() const;

 private:
  Fd fd_;
};

}  // namespace theseus
