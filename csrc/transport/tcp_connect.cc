#include "transport/tcp_connect.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/env.h"
#include "transport/tcp_kernel.h"

namespace theseus {
namespace {

constexpr uint64_t kFirstPauseNs = 10'000'000;
constexpr uint64_t kLongestPauseNs = 500'000'000;

void set_option(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); }

// Failures of the network or the peer, which may pass.
bool worth_retrying(int error) {
  switch (error) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
    case ETIMEDOUT:
    case EPIPE:
    case EAGAIN: return true;
    default: return false;
  }
}

}  // namespace

std::string TcpRoute::describe() const {
  return "rank " + std::to_string(peer) + " (" + host + ") over rail " + std::to_string(rail) + " (" +
         local.ip_string() + " - " + remote.to_string() + ")";
}

TcpConnector::TcpConnector(const TcpRoute& route, const Hello& hello, double give_up_after, int buffer_bytes)
    : route_(route),
      hello_(hello),
      buffer_bytes_(buffer_bytes),
      give_up_ns_(now_ns() + static_cast<uint64_t>(give_up_after * 1e9)),
      pause_ns_(kFirstPauseNs) {}

Result<bool> TcpConnector::advance() {
  if (!socket_.valid()) {
    if (retry_at_ns_ > now_ns()) return false;
    THESEUS_TRY(begin());
    if (!socket_.valid()) return false;
  }
  if (!connected_) {
    pollfd entry{socket_.fd(), POLLOUT, 0};
    if (poll(&entry, 1, 0) <= 0) {
      // A peer that swallows packets answers nothing at all.
      if (now_ns() >= give_up_ns_) THESEUS_TRY(retry(ETIMEDOUT));
      return false;
    }
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(socket_.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
      THESEUS_TRY(retry(error));
      return false;
    }
    connected_ = true;
  }
  THESEUS_TRY(say_hello());
  return socket_.valid() && hello_sent_ == sizeof hello_;
}

Status TcpConnector::begin() {
  const int descriptor = socket(route_.remote.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor < 0) return descriptor_error("cannot make a socket to " + route_.describe(), errno);
  socket_ = Socket(Fd(descriptor));
  connected_ = false;
  hello_sent_ = 0;
  set_option(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
  socket_.set_data_options(buffer_bytes_);
  choose_congestion_control(descriptor, settings::tcp_congestion());
  sockaddr_storage address;
  if (route_.local.valid()) {
    // The kernel then picks the port together with the destination, so that ports do not run out.
    set_option(descriptor, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    const socklen_t length = route_.local.to_sockaddr(&address);
    if (bind(descriptor, reinterpret_cast<sockaddr*>(&address), length) != 0) {
      return Status::from_errno("cannot send from the address of rail " + std::to_string(route_.rail) + ", " +
                                    route_.local.ip_string() + " (see THESEUS_NICS)",
                                errno);
    }
  }
  const socklen_t length = route_.remote.to_sockaddr(&address);
  if (::connect(descriptor, reinterpret_cast<sockaddr*>(&address), length) == 0) {
    connected_ = true;
  } else if (errno != EINPROGRESS && errno != EINTR) {
    return retry(errno);
  }
  return {};
}

Status TcpConnector::retry(int error) {
  socket_.close();
  const std::string what = "cannot reach " + route_.describe();
  if (!worth_retrying(error)) return Status::from_errno(what, error);
  const uint64_t now = now_ns();
  if (now >= give_up_ns_) return Status::remote(what + ": " + std::strerror(error));
  retry_at_ns_ = std::min(now + pause_ns_, give_up_ns_);
  pause_ns_ = std::min(pause_ns_ * 2, kLongestPauseNs);
  return {};
}

Status TcpConnector::say_hello() {
  const ssize_t sent = send(socket_.fd(), reinterpret_cast<const char*>(&hello_) + hello_sent_,
                            sizeof hello_ - hello_sent_, MSG_NOSIGNAL);
  if (sent < 0) return errno == EAGAIN || errno == EINTR ? Status() : retry(errno);
  hello_sent_ += static_cast<size_t>(sent);
  return {};
}

}  // namespace theseus
