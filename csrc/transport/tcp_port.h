// The two ends of a TCP connection as ports: rings of slots in user space, and a non-blocking socket.
//
// The sender's ring is what guarantees that slots() messages fit before the receiver looks; the receiver's only lets
// the next messages arrive while one is worked on, and so is shorter. Slots are made when first used.
#pragma once

#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "base/fd.h"
#include "net/socket.h"
#include "transport/flow_counters.h"
#include "transport/pacing.h"
#include "transport/port.h"
#include "transport/tcp_connect.h"
#include "transport/tcp_wire.h"

namespace theseus {

// Memory of one message, header in front so that both go out in one piece. Grows to the largest size asked for.
class TcpSlot {
 public:
  // False where there is no memory.
  bool reserve(size_t bytes, size_t slot_bytes);
  TcpHeader* header() { return reinterpret_cast<TcpHeader*>(memory_.get()); }
  uint8_t* payload() { return memory_.get() + sizeof(TcpHeader); }
  uint8_t* start() { return memory_.get(); }

 private:
  struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
  };
  std::unique_ptr<uint8_t, Free> memory_;
  size_t capacity_ = 0;
};

class TcpSendPort final : public SendPort {
 public:
  // Starts to connect. `pacing` may be null.
  TcpSendPort(TcpRoute route, const Hello& hello, size_t slot_bytes, int slots, Pacing* pacing);
  ~TcpSendPort() override;

  size_t slot_bytes() const override { return slot_bytes_; }
  int slots() const override { return static_cast<int>(slots_.size()); }
  void set_tag(const SignatureTag& tag) override { tag_ = &tag; }
  void* acquire(size_t bytes) override;
  void commit(size_t bytes) override;
  bool can_reference(const void*, size_t, size_t) const override { return false; }
  bool post_reference(const void*, size_t) override { return false; }
  uint64_t posted() const override { return posted_; }
  uint64_t released() override { return handed_; }
  Status progress() override;

  // RemoteError where the peer's machine has stopped to acknowledge what it was sent.
  Status watch_over(uint64_t now);
  uint64_t bytes_moved() const { return bytes_moved_; }
  bool pending() const { return handed_ != posted_; }
  // True where progress() could do something, now or later.
  bool busy() const { return pending() || connector_.has_value(); }
  // What to wait for: this descriptor to become writable (-1: none), or this time (0: none).
  int wait_fd(uint64_t now) const;
  uint64_t wait_until_ns() const;

 private:
  void connect_some();
  void write_some();
  bool write_once(size_t limit);
  void handed_over(size_t bytes);
  void set_backlogged(bool backlogged);
  void fail(const char* doing, int error);

  const TcpRoute route_;
  const size_t slot_bytes_;
  std::vector<TcpSlot> slots_;
  TokenBucket* bucket() const { return pacing_ == nullptr ? nullptr : &pacing_->egress(route_.rail); }
  Pacing* pacing_;
  FlowCounters& flow_;
  std::optional<TcpConnector> connector_;
  Socket socket_;
  Status status_;
  const SignatureTag* tag_ = nullptr;
  uint64_t posted_ = 0;
  uint64_t handed_ = 0;  // messages that the kernel has in full
  size_t offset_ = 0;    // bytes of the oldest one that it has already
  size_t position_ = 0;  // posted_ modulo slots
  uint64_t bytes_moved_ = 0;
  bool backlogged_ = false;
  uint64_t silence_check_ns_ = 0;
};

// Where the watch thread leaves sockets for receive ports to find.
class TcpInbox {
 public:
  // Called on the watch thread.
  void put(const Hello& hello, Socket socket);
  // Whether anything arrived since the caller's `seen` count, which is updated.
  bool changed(uint64_t* seen) const;
  // Invalid where none is there.
  Socket take(int source, int rail, int channel);
  // Becomes readable when something arrives; -1 where no descriptor could be made. clear() resets it.
  int wake_fd();
  void clear();

 private:
  std::atomic<uint64_t> arrivals_{0};
  std::mutex mutex_;  // guards what follows
  std::map<std::tuple<int, int, int>, Socket> sockets_;
  Fd wake_;
};

class TcpRecvPort final : public RecvPort {
 public:
  TcpRecvPort(TcpRoute route, std::shared_ptr<TcpInbox> inbox, size_t slot_bytes, int slots, Pacing* pacing);

  const Message* peek() override;
  Status fetch(void* dst, size_t offset, size_t bytes) override;
  void release() override;
  RequestSignature peer_signature() override;
  Status progress() override;

  uint64_t bytes_moved() const { return bytes_moved_; }
  bool connected() const { return socket_.valid(); }
  // What to wait for: this descriptor to become readable (-1: none), or this time (0: none).
  int wait_fd(uint64_t now) const;
  uint64_t wait_until_ns() const;

 private:
  bool find_socket();
  void read_some();
  bool read_once(size_t limit);
  bool parse_staged();
  bool begin_message(const TcpHeader& header);
  void ended(int error);
  bool full() const { return complete_ - released_ >= slots_.size(); }
  TokenBucket* bucket() const { return pacing_ == nullptr ? nullptr : &pacing_->ingress(route_.rail); }
  bool may_read() const { return socket_.valid() && !eof_ && status_.ok() && (in_message_ || !full()); }

  const TcpRoute route_;
  std::shared_ptr<TcpInbox> inbox_;
  uint64_t inbox_seen_ = 0;
  const size_t slot_bytes_;
  std::vector<TcpSlot> slots_;
  Pacing* pacing_;
  Socket socket_;
  Status status_;
  Message message_;
  uint64_t complete_ = 0;  // messages received whole
  uint64_t released_ = 0;
  bool in_message_ = false;  // its header is in slot complete_ modulo slots
  size_t received_ = 0;      // of its bytes
  bool eof_ = false;
  uint64_t bytes_moved_ = 0;
  // Bytes read beyond what was asked for: headers, and small messages whole.
  std::vector<uint8_t> staging_;
  size_t staged_from_ = 0;
  size_t staged_to_ = 0;
};

}  // namespace theseus
