// Frames with descriptors over a Unix stream socket, as theseus_py/agent/wire.py describes them.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace theseus {

struct AgentFrame {
  uint32_t kind = 0;
  std::string payload;
  Fd descriptor;  // invalid: none came along
};

// One non-blocking connection. Not thread-safe.
class AgentSocket {
 public:
  // Connects to an abstract name (without its leading zero byte). RemoteError: nobody listens there, or not as this
  // user; SystemError: no descriptors and the like.
  static Result<AgentSocket> connect(const std::string& name);

  int fd() const { return fd_.get(); }
  // Queues a frame; `descriptor` (not owned, -1: none) is duplicated at once.
  Status send(uint32_t kind, std::string_view payload, int descriptor = -1);
  // Sends what the socket takes. RemoteError: the agent is gone.
  Status flush();
  bool wants_to_write() const { return !outbound_.empty(); }
  // Reads what is there and appends complete frames. RemoteError: the agent is gone, or broke the protocol.
  Status receive(std::vector<AgentFrame>& frames);

 private:
  struct Outbound {
    std::string bytes;
    size_t sent = 0;
    Fd descriptor;
  };
  Status cut(std::vector<AgentFrame>& frames);

  Fd fd_;
  std::string inbound_;
  std::deque<Fd> descriptors_;  // in the order of their frames
  std::deque<Outbound> outbound_;
};

}  // namespace theseus
