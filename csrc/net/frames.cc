#include "net/frames.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace theseus {
namespace {

struct Header {
  uint32_t length;
  uint32_t type;
};

void append_frame(std::string* out, uint32_t type, std::string_view payload) {
  const Header header{static_cast<uint32_t>(payload.size()), type};
  out->append(reinterpret_cast<const char*>(&header), sizeof header);
  out->append(payload);
}

}  // namespace

Status send_frame(const Socket& socket, uint32_t type, std::string_view payload, const Deadline& deadline) {
  std::string bytes;
  append_frame(&bytes, type, payload);
  return socket.send_all(bytes.data(), bytes.size(), deadline);
}

Result<Frame> recv_frame(const Socket& socket, size_t max_bytes, const Deadline& deadline) {
  Header header;
  THESEUS_TRY(socket.recv_all(&header, sizeof header, deadline));
  if (header.length > max_bytes) return Status::remote("the peer sent a message that is too long");
  Frame frame{header.type, std::string(header.length, '\0')};
  THESEUS_TRY(socket.recv_all(frame.payload.data(), frame.payload.size(), deadline));
  return frame;
}

FrameConnection::FrameConnection(EventLoop& loop, Socket socket, size_t max_bytes, size_t max_queued,
                                 Callbacks callbacks)
    : loop_(loop),
      socket_(std::move(socket)),
      peer_(socket_.remote_address().to_string()),
      max_bytes_(max_bytes),
      max_queued_(max_queued),
      callbacks_(std::make_shared<Callbacks>(std::move(callbacks))) {}

std::shared_ptr<FrameConnection> FrameConnection::open(EventLoop& loop, Socket socket, size_t max_bytes,
                                                       size_t max_queued, Callbacks callbacks) {
  std::shared_ptr<FrameConnection> connection(
      new FrameConnection(loop, std::move(socket), max_bytes, max_queued, std::move(callbacks)));
  // The loop keeps the connection until it is closed.
  loop.watch(connection->socket_.fd(), EPOLLIN, [connection](uint32_t events) { connection->ready(events); });
  return connection;
}

void FrameConnection::ready(uint32_t events) {
  const auto self = shared_from_this();
  if ((events & EPOLLOUT) != 0 && !flush()) return;
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read_some();
}

// One read per event, so that one talkative peer does not keep the others waiting.
void FrameConnection::read_some() {
  char buffer[32768];
  const ssize_t got = recv(socket_.fd(), buffer, sizeof buffer, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return fail(got == 0 ? "it closed the connection" : std::strerror(errno));
  if (closing_) return;  // nobody listens any more
  inbound_.append(buffer, static_cast<size_t>(got));
  deliver();
}

void FrameConnection::deliver() {
  size_t offset = 0;
  while (inbound_.size() - offset >= sizeof(Header)) {
    Header header;
    std::memcpy(&header, inbound_.data() + offset, sizeof header);
    if (header.length > max_bytes_) return fail("it sent a message that is too long");
    if (inbound_.size() - offset - sizeof header < header.length) break;
    Frame frame{header.type, inbound_.substr(offset + sizeof header, header.length)};
    offset += sizeof header + header.length;
    // A callback may close this connection, which drops the callbacks.
    const auto callbacks = callbacks_;
    if (callbacks == nullptr) return;
    callbacks->on_frame(std::move(frame));
    if (callbacks_ == nullptr) return;
  }
  inbound_.erase(0, offset);
  if (inbound_.empty()) inbound_.shrink_to_fit();
}

void FrameConnection::send(uint32_t type, std::string_view payload) {
  if (!is_open() || closing_) return;
  const bool was_idle = outbound_.empty();
  if (outbound_.size() - sent_ + payload.size() > max_queued_) return fail("it does not read what it is sent");
  append_frame(&outbound_, type, payload);
  if (was_idle) flush();
}

// False where the connection is closed now.
bool FrameConnection::flush() {
  while (sent_ < outbound_.size()) {
    const ssize_t sent = ::send(socket_.fd(), outbound_.data() + sent_, outbound_.size() - sent_, MSG_NOSIGNAL);
    if (sent >= 0) {
      sent_ += static_cast<size_t>(sent);
    } else if (errno == EAGAIN) {
      wait_to_write(true);
      return true;
    } else if (errno != EINTR) {
      // What the peer sent before it went (a goodbye, a failure) may still wait to be read: the read finds the end.
      outbound_.clear();
      sent_ = 0;
      wait_to_write(false);
      if (closing_) close();
      return is_open();
    }
  }
  outbound_.clear();
  outbound_.shrink_to_fit();
  sent_ = 0;
  if (closing_) {
    close();
    return false;
  }
  wait_to_write(false);
  return true;
}

void FrameConnection::wait_to_write(bool wanted) {
  if (wanted == waits_to_write_) return;
  waits_to_write_ = wanted;
  loop_.change(socket_.fd(), wanted ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void FrameConnection::close_after_send() {
  if (!is_open()) return;
  closing_ = true;
  callbacks_ = nullptr;
  if (outbound_.empty()) return close();
  const auto timer = std::make_shared<EventLoop::TimerId>(0);
  EventLoop& loop = loop_;
  *timer = loop.add_timer(30, [&loop, timer, weak = weak_from_this()] {
    loop.remove_timer(*timer);
    if (const auto self = weak.lock()) self->close();
  });
}

void FrameConnection::close() {
  callbacks_ = nullptr;
  if (!is_open()) return;
  const auto self = shared_from_this();
  loop_.unwatch(socket_.fd());
  socket_.close();
}

void FrameConnection::fail(const std::string& why) {
  const auto callbacks = callbacks_;
  close();
  if (callbacks != nullptr) callbacks->on_close(why);
}

}  // namespace theseus
