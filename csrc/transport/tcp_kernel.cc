#include "transport/tcp_kernel.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>

namespace theseus {
namespace {

constexpr int kSegments = 8;

// False where the kernel is too old to know what lies at `needed`.
bool ask(int fd, tcp_info* info, size_t needed) {
  socklen_t length = sizeof *info;
  return getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &length) == 0 && length >= needed;
}

}  // namespace

std::optional<uint64_t> unacknowledged_bytes(int fd) {
  int bytes = 0;
  if (ioctl(fd, SIOCOUTQ, &bytes) != 0) return std::nullopt;
  return static_cast<uint64_t>(std::max(bytes, 0));
}

// The kernel's own count of time limited by the window will not do: where a long queue lies on the way, it grows while
// the receiver takes all there is.
bool window_is_closed(int fd) {
  tcp_info info{};
  if (!ask(fd, &info, offsetof(tcp_info, tcpi_notsent_bytes) + sizeof info.tcpi_notsent_bytes)) return false;
  // Who asks in vain whether there is room again has lost the network, not the receiver.
  return info.tcpi_unacked == 0 && info.tcpi_notsent_bytes > 0 && info.tcpi_probes <= 1;
}

void choose_congestion_control(int fd, const std::string& name) {
  const auto choose = [fd](const std::string& one) {
    return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, one.data(), static_cast<socklen_t>(one.size())) == 0;
  };
  if (name.empty()) {
    (void)(choose("cubic") || choose("reno"));
  } else {
    (void)choose(name);
  }
}

void set_send_buffer(int fd, int bytes) {
  int segment = 0;
  socklen_t length = sizeof segment;
  if (getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, &length) == 0) bytes = std::max(bytes, kSegments * segment);
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

double silent_seconds(int fd) {
  tcp_info info{};
  if (!ask(fd, &info, offsetof(tcp_info, tcpi_pmtu))) return 0;
  return info.tcpi_unacked > 0 && info.tcpi_retransmits > 0 ? info.tcpi_last_ack_recv / 1e3 : 0;
}

}  // namespace theseus
