#include "net/agent_frames.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace theseus {
namespace {

constexpr size_t kLongest = 64u << 20;
constexpr uint32_t kWithDescriptor = 0x80000000u;
constexpr size_t kMostDescriptors = 8;

struct Header {
  uint32_t length;
  uint32_t kind;
};

Status gone(const std::string& why) { return Status::remote("the node's agent " + why); }

bool runs_as_this_user(int fd) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 && credentials.uid == geteuid();
}

}  // namespace

Result<AgentSocket> AgentSocket::connect(const std::string& name) {
  AgentSocket socket;
  socket.fd_ = Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.fd_) return descriptor_error("cannot make a socket to the node's agent", errno);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof address.sun_path) return Status::argument("the agent's name is too long");
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    return gone(std::string("cannot be reached: ") + std::strerror(errno));
  }
  if (!runs_as_this_user(socket.fd())) return gone("is another user's");
  return socket;
}

Status AgentSocket::send(uint32_t kind, std::string_view payload, int descriptor) {
  Outbound frame;
  if (descriptor >= 0) {
    frame.descriptor = Fd(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    if (!frame.descriptor) return descriptor_error("cannot pass a descriptor to the node's agent", errno);
    kind |= kWithDescriptor;
  }
  const Header header{static_cast<uint32_t>(payload.size()), kind};
  frame.bytes.append(reinterpret_cast<const char*>(&header), sizeof header);
  frame.bytes.append(payload);
  outbound_.push_back(std::move(frame));
  return {};
}

Status AgentSocket::flush() {
  while (!outbound_.empty()) {
    Outbound& frame = outbound_.front();
    iovec part{frame.bytes.data() + frame.sent, frame.bytes.size() - frame.sent};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (frame.descriptor.valid()) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(sizeof(int));
      const int descriptor = frame.descriptor.get();
      std::memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
    }
    const ssize_t sent = sendmsg(fd(), &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return {};
    if (sent < 0) return gone(std::string("does not listen any more: ") + std::strerror(errno));
    frame.descriptor.reset();  // went with the first byte
    frame.sent += static_cast<size_t>(sent);
    if (frame.sent == frame.bytes.size()) outbound_.pop_front();
  }
  return {};
}

Status AgentSocket::receive(std::vector<AgentFrame>& frames) {
  for (int reads = 0; reads < 16; ++reads) {
    char bytes[65536];
    iovec part{bytes, sizeof bytes};
    alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(fd(), &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got < 0) return gone(std::string("closed the connection: ") + std::strerror(errno));
    for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
      if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int descriptor = -1;
        std::memcpy(&descriptor, CMSG_DATA(head) + i * sizeof(int), sizeof descriptor);
        descriptors_.emplace_back(descriptor);
      }
    }
    if (got == 0) return gone("closed the connection");
    if ((message.msg_flags & MSG_CTRUNC) != 0 || descriptors_.size() > kMostDescriptors) {
      return gone("sent too many descriptors");
    }
    inbound_.append(bytes, static_cast<size_t>(got));
    if (static_cast<size_t>(got) < sizeof bytes) break;
  }
  return cut(frames);
}

Status AgentSocket::cut(std::vector<AgentFrame>& frames) {
  size_t offset = 0;
  while (inbound_.size() - offset >= sizeof(Header)) {
    Header header;
    std::memcpy(&header, inbound_.data() + offset, sizeof header);
    if (header.length > kLongest) return gone("sent a message that is too long");
    if (inbound_.size() - offset - sizeof header < header.length) break;
    AgentFrame frame{header.kind & ~kWithDescriptor, inbound_.substr(offset + sizeof header, header.length), Fd()};
    if ((header.kind & kWithDescriptor) != 0) {
      if (descriptors_.empty()) return gone("announced a descriptor that did not come");
      frame.descriptor = std::move(descriptors_.front());
      descriptors_.pop_front();
    }
    offset += sizeof header + header.length;
    frames.push_back(std::move(frame));
  }
  inbound_.erase(0, offset);
  return {};
}

}  // namespace theseus
