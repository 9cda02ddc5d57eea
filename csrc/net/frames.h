// Length-prefixed frames over a stream socket: {length, type, payload}. Control messages only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "net/event_loop.h"
#include "net/socket.h"

namespace theseus {

struct Frame {
  uint32_t type = 0;
  std::string payload;
};

// Blocking, for the client's side.
Status send_frame(const Socket& socket, uint32_t type, std::string_view payload, const Deadline& deadline);
// RemoteError also for a frame of more than `max_bytes`.
Result<Frame> recv_frame(const Socket& socket, size_t max_bytes, const Deadline& deadline);

// The same on an event loop. Every function, and every callback, runs on the loop's thread.
class FrameConnection : public std::enable_shared_from_this<FrameConnection> {
 public:
  struct Callbacks {
    std::function<void(Frame)> on_frame;
    // The peer closed, reset, or broke the protocol; not called after close(). No callback follows.
    std::function<void(const std::string& why)> on_close;
  };

  // The peer is closed down when it sends a frame of more than `max_bytes`, or lets `max_queued` bytes pile up.
  static std::shared_ptr<FrameConnection> open(EventLoop& loop, Socket socket, size_t max_bytes, size_t max_queued,
                                               Callbacks callbacks);

  void send(uint32_t type, std::string_view payload);
  // Closes when all is sent, or the peer took longer than 30 s to read it. No callback follows.
  void close_after_send();
  void close();
  bool is_open() const { return socket_.valid(); }
  const std::string& peer() const { return peer_; }

 private:
  FrameConnection(EventLoop& loop, Socket socket, size_t max_bytes, size_t max_queued, Callbacks callbacks);
  void ready(uint32_t events);
  void read_some();
  void deliver();
  bool flush();
  void wait_to_write(bool wanted);
  void fail(const std::string& why);

  EventLoop& loop_;
  Socket socket_;
  std::string peer_;
  size_t max_bytes_;
  size_t max_queued_;
  std::shared_ptr<Callbacks> callbacks_;  // null: nobody listens any more
  std::string inbound_;
  std::string outbound_;
  size_t sent_ = 0;  // of outbound_
  bool waits_to_write_ = false;
  bool closing_ = false;
};

}  // namespace theseus
