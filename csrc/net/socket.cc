#include "net/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

namespace theseus {
namespace {

constexpr int kStreamFlags = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
constexpr int kRtoMaxMs = 44;  // TCP_RTO_MAX_MS of Linux 6.15 and newer, which headers lack; at least 1000
constexpr int kLongestRetryMs = 1000;
constexpr int kPatienceMs = 600'000;  // what a process leaves behind that ends meanwhile stays as long

Result<Socket> open_socket(int family, const std::string& purpose) {
  const int descriptor = ::socket(family, kStreamFlags, 0);
  if (descriptor < 0) return descriptor_error("cannot make a socket to " + purpose, errno);
  return Socket(Fd(descriptor));
}

void set_option(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); }

// Waits for `events`; false at the deadline.
bool wait_for(int fd, short events, const Deadline& deadline) {
  while (true) {
    pollfd entry{fd, events, 0};
    if (poll(&entry, 1, deadline.poll_milliseconds()) > 0) return true;
    if (deadline.expired()) return false;
  }
}

Status connect_failure(const std::string& to, int error) {
  const std::string what = "cannot connect to " + to;
  const bool remote = error == ECONNREFUSED || error == ECONNRESET || error == EHOSTUNREACH || error == ENETUNREACH ||
                      error == ETIMEDOUT || error == EPIPE;
  if (remote) return Status::remote(what + ": " + std::strerror(error));
  return Status::from_errno(what, error);
}

Status finish_connect(const Socket& socket, const sockaddr* address, socklen_t length, const std::string& to,
                      const Deadline& deadline) {
  while (::connect(socket.fd(), address, length) != 0) {
    if (errno == EINTR) continue;
    // A Unix listener whose queue is full says EAGAIN, and has to be asked again.
    if (errno == EAGAIN) {
      if (deadline.expired()) return deadline.status("connecting to " + to);
      const timespec pause{0, 1000000};
      nanosleep(&pause, nullptr);
      continue;
    }
    if (errno == EISCONN) return {};
    if (errno != EINPROGRESS && errno != EALREADY) return connect_failure(to, errno);
    if (!wait_for(socket.fd(), POLLOUT, deadline)) return deadline.status("connecting to " + to);
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
    return error == 0 ? Status() : connect_failure(to, error);
  }
  return {};
}

Result<socklen_t> unix_address(const std::string& name, sockaddr_un* address) {
  std::memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  if (name.empty() || name.size() + 1 > sizeof address->sun_path) {
    return Status::argument("'" + name + "' is too long, or too short, for the name of a Unix socket");
  }
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Status transfer_failure(const char* what, int error) {
  if (error == ECONNRESET || error == EPIPE || error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETDOWN) {
    return Status::remote(std::string("the connection was lost while ") + what + ": " + std::strerror(error));
  }
  return Status::from_errno(std::string("failed while ") + what, error);
}

}  // namespace

Result<Socket> Socket::connect(const Address& to, const Deadline& deadline, const Address& source) {
  if (!to.valid() || to.port() == 0)
    return Status::argument("cannot connect to " + to.to_string() + ": no such address");
  auto socket = open_socket(to.family(), "connect to " + to.to_string());
  if (!socket.ok()) return socket;
  set_option(socket->fd(), IPPROTO_TCP, TCP_NODELAY, 1);
  sockaddr_storage address;
  if (source.valid()) {
    // The kernel then picks the port together with the destination, so that ports do not run out.
    set_option(socket->fd(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    const socklen_t length = source.to_sockaddr(&address);
    if (bind(socket->fd(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
      return Status::from_errno("cannot send from the local address " + source.ip_string(), errno);
    }
  }
  const socklen_t length = to.to_sockaddr(&address);
  THESEUS_TRY(finish_connect(socket.value(), reinterpret_cast<sockaddr*>(&address), length, to.to_string(), deadline));
  return socket;
}

Result<Socket> Socket::connect_any(const std::vector<Address>& to, const Deadline& deadline) {
  Status failure = Status::argument("there is no address to connect to");
  std::string tried;
  for (size_t i = 0; i < to.size(); ++i) {
    // Each address gets its share of the time left, so that one that swallows packets does not use it all.
    const double share = deadline.remaining() / static_cast<double>(to.size() - i);
    auto socket = connect(to[i], i + 1 < to.size() ? deadline.at_most(std::min(share, 10.0)) : deadline);
    if (socket.ok() || deadline.cancelled()) return socket;
    if (failure.code() != Code::RemoteError) failure = socket.status();
  }
  return failure;
}

Result<Socket> Socket::listen(const Address& at, int backlog) {
  auto socket = open_socket(at.family(), "listen at " + at.to_string());
  if (!socket.ok()) return socket;
  set_option(socket->fd(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (at.family() == AF_INET6) {
    const bool wildcard = at.same_ip(Address::any(AF_INET6, 0));
    set_option(socket->fd(), IPPROTO_IPV6, IPV6_V6ONLY, wildcard ? 0 : 1);
  }
  sockaddr_storage address;
  const socklen_t length = at.to_sockaddr(&address);
  if (bind(socket->fd(), reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(socket->fd(), backlog) != 0) {
    return Status::from_errno("cannot listen at " + at.to_string(), errno);
  }
  return socket;
}

Result<Socket> Socket::connect_unix(const std::string& name, const Deadline& deadline) {
  sockaddr_un address;
  auto length = unix_address(name, &address);
  if (!length.ok()) return length.status();
  auto socket = open_socket(AF_UNIX, "connect to the Unix socket @" + name);
  if (!socket.ok()) return socket;
  THESEUS_TRY(finish_connect(socket.value(), reinterpret_cast<sockaddr*>(&address), length.value(),
                             "the Unix socket @" + name, deadline));
  return socket;
}

Result<Socket> Socket::listen_unix(const std::string& name) {
  sockaddr_un address;
  auto length = unix_address(name, &address);
  if (!length.ok()) return length.status();
  auto socket = open_socket(AF_UNIX, "listen at the Unix socket @" + name);
  if (!socket.ok()) return socket;
  if (bind(socket->fd(), reinterpret_cast<sockaddr*>(&address), length.value()) != 0 ||
      ::listen(socket->fd(), 1024) != 0) {
    return Status::from_errno("cannot listen at the Unix socket @" + name, errno);
  }
  return socket;
}

Result<std::pair<Socket, Socket>> Socket::pair() {
  int ends[2];
  if (socketpair(AF_UNIX, kStreamFlags, 0, ends) != 0) return descriptor_error("cannot make a pair of sockets", errno);
  return std::pair<Socket, Socket>(Socket(Fd(ends[0])), Socket(Fd(ends[1])));
}

Result<Socket> Socket::accept(const Deadline& deadline) const {
  while (true) {
    const int descriptor = accept4(fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (descriptor >= 0) {
      Socket accepted{Fd(descriptor)};
      set_option(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);  // no effect on Unix sockets
      return accepted;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno != EAGAIN) return descriptor_error("cannot accept a connection", errno);
    if (deadline.expired() || !wait_for(fd(), POLLIN, deadline)) return deadline.status("waiting for a connection");
  }
}

Address Socket::local_address() const {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return Address::from_sockaddr(reinterpret_cast<sockaddr*>(&address));
}

Address Socket::remote_address() const {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getpeername(fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return Address::from_sockaddr(reinterpret_cast<sockaddr*>(&address));
}

Status Socket::send_all(const void* data, size_t bytes, const Deadline& deadline) const {
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = send(fd(), next, bytes, MSG_NOSIGNAL);
    if (sent >= 0) {
      next += sent;
      bytes -= static_cast<size_t>(sent);
    } else if (errno == EAGAIN) {
      if (!wait_for(fd(), POLLOUT, deadline)) return deadline.status("sending");
    } else if (errno != EINTR) {
      return transfer_failure("sending", errno);
    }
  }
  return {};
}

Status Socket::recv_all(void* data, size_t bytes, const Deadline& deadline) const {
  auto* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = recv(fd(), next, bytes, 0);
    if (got > 0) {
      next += got;
      bytes -= static_cast<size_t>(got);
    } else if (got == 0) {
      return Status::remote("the peer closed the connection");
    } else if (errno == EAGAIN) {
      if (!wait_for(fd(), POLLIN, deadline)) return deadline.status("receiving");
    } else if (errno != EINTR) {
      return transfer_failure("receiving", errno);
    }
  }
  return {};
}

void Socket::set_data_options(int buffer_bytes) const {
  // Not every kernel has cubic, and not every container may choose; the system's default works too.
  setsockopt(fd(), IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
  // Otherwise TCP waits, after an outage, for up to as long as that lasted before it sends again; and then it would
  // give up after so many tries.
  set_option(fd(), IPPROTO_TCP, kRtoMaxMs, kLongestRetryMs);
  set_option(fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, kPatienceMs);
  if (buffer_bytes <= 0) return;
  set_option(fd(), SOL_SOCKET, SO_SNDBUF, buffer_bytes);
  set_option(fd(), SOL_SOCKET, SO_RCVBUF, buffer_bytes);
}

Status Socket::send_descriptor(int descriptor, const void* data, size_t bytes, const Deadline& deadline) const {
  if (bytes == 0 || bytes > 4096) return Status::internal("a descriptor travels with 1 to 4096 bytes");
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part{const_cast<void*>(data), bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  while (true) {
    const ssize_t sent = sendmsg(fd(), &message, MSG_NOSIGNAL);
    if (sent >= 0) {
      return send_all(static_cast<const char*>(data) + sent, bytes - static_cast<size_t>(sent), deadline);
    }
    if (errno == EAGAIN) {
      if (!wait_for(fd(), POLLOUT, deadline)) return deadline.status("passing a descriptor");
    } else if (errno != EINTR) {
      return transfer_failure("passing a descriptor", errno);
    }
  }
}

Result<Fd> Socket::recv_descriptor(void* data, size_t bytes, const Deadline& deadline) const {
  // Room for one only: the kernel closes what a stranger sends beyond it.
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part{data, bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = -1;
  while (got < 0) {
    got = recvmsg(fd(), &message, MSG_CMSG_CLOEXEC);
    if (got >= 0) break;
    if (errno == EAGAIN) {
      if (!wait_for(fd(), POLLIN, deadline)) return deadline.status("receiving a descriptor");
    } else if (errno != EINTR) {
      return transfer_failure("receiving a descriptor", errno);
    }
  }
  if (got == 0) return Status::remote("the peer closed the connection before it passed its descriptor");
  Fd received;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
    received = Fd(descriptor);
  }
  THESEUS_TRY(recv_all(static_cast<char*>(data) + got, bytes - static_cast<size_t>(got), deadline));
  // At its own limit of descriptors the kernel drops what it cannot install, and says so by MSG_CTRUNC.
  if (!received.valid() && (message.msg_flags & MSG_CTRUNC) != 0) {
    return descriptor_error("cannot receive a descriptor from a peer", EMFILE);
  }
  if (!received.valid()) return Status::remote("the peer sent no descriptor");
  return received;
}

bool Socket::ended() const {
  pollfd waiting{fd(), POLLRDHUP, 0};
  return poll(&waiting, 1, 0) > 0 && (waiting.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

bool Socket::peer_is_same_user() const {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(fd(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

}  // namespace theseus
