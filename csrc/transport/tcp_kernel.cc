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

uint64_t held_up_by_receiver_ns(int fd) {
  tcp_info info{};
  if (!ask(fd, &info, offsetof(tcp_info, tcpi_rwnd_limited) + sizeof info.tcpi_rwnd_limited)) return 0;
  return info.tcpi_rwnd_limited * 1000;
}

double silent_seconds(int fd) {
  tcp_info info{};
  if (!ask(fd, &info, offsetof(tcp_info, tcpi_pmtu))) return 0;
  return info.tcpi_unacked > 0 && info.tcpi_retransmits > 0 ? info.tcpi_last_ack_recv / 1e3 : 0;
}

}  // namespace theseus
