// The receiving end of a TCP connection as a port. Its ring only lets the next messages arrive while one is worked on,
// and so is shorter than the sender's. Slots are made when first used.
//
// Messages of a connection whose rail fails come over other rails as well (TcpAid): out of order, and sometimes twice.
// They are taken in the order of their numbers, each once.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "base/fd.h"
#include "net/socket.h"
#include "transport/pacing.h"
#include "transport/port.h"
#include "transport/tcp_connect.h"
#include "transport/tcp_slot.h"

namespace theseus {

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

  const TcpRoute& route() const { return route_; }
  uint64_t bytes_moved() const { return bytes_moved_; }
  bool connected() const { return socket_.valid(); }
  // What to wait for: this descriptor to become readable (-1: none), or this time (0: none).
  int wait_fd(uint64_t now) const;
  uint64_t wait_until_ns() const;

  // --- For TcpAid.

  // A message that came over another rail. InternalError where it cannot be one of this connection.
  Status accept(TcpSlot message);
  uint64_t complete() const { return complete_; }
  uint64_t released() const { return released_; }
  TcpReceipt receipt() const;
  // Whether messages may come another way though this connection has ended. Until it says so, its end is a failure.
  void set_another_way(bool there) {
    another_way_ = there;
    if (!there && status_.ok()) status_ = end_status_;
  }

 private:
  bool find_socket();
  void read_some();
  bool read_once(size_t limit);
  bool parse_staged();
  bool begin_message(const TcpHeader& header);
  bool sound(const TcpHeader& header) const;
  Status refuse();
  void end_message();
  void drop_rest();
  void settle();
  void ended(int error);
  bool full() const { return complete_ - released_ >= slots_.size(); }
  TcpSlot& at(uint64_t sequence) { return slots_[sequence % slots_.size()]; }
  TcpSlot& incoming() { return is_early_ ? early_ : at(complete_); }
  size_t missing() { return incoming().header()->bytes - received_; }
  TokenBucket* bucket() const { return pacing_ == nullptr ? nullptr : &pacing_->ingress(route_.rail); }
  bool may_begin() const { return !full() && early_messages_.size() < kMostEarly; }
  bool may_read() const {
    return socket_.valid() && !eof_ && status_.ok() && (in_message_ || discard_ > 0 || may_begin());
  }
  static constexpr size_t kMostEarly = 64;

  const TcpRoute route_;
  std::shared_ptr<TcpInbox> inbox_;
  uint64_t inbox_seen_ = 0;
  const size_t slot_bytes_;
  std::vector<TcpSlot> slots_;
  Pacing* pacing_;
  Socket socket_;
  Status status_;
  Status end_status_;  // how the connection ended, for when there is no other way
  bool another_way_ = false;
  Message message_;
  uint64_t complete_ = 0;  // messages received whole, without a gap
  uint64_t released_ = 0;
  std::map<uint64_t, TcpSlot> early_messages_;  // received whole, beyond a gap or beyond the ring
  bool in_message_ = false;                     // one is being received, into incoming()
  bool is_early_ = false;                       // it is beyond a gap
  TcpSlot early_;
  size_t received_ = 0;  // of its bytes
  size_t discard_ = 0;   // bytes to come of a message that arrived another way
  bool eof_ = false;
  uint64_t bytes_moved_ = 0;
  // Bytes read beyond what was asked for: headers, and small messages whole.
  std::vector<uint8_t> staging_;
  size_t staged_from_ = 0;
  size_t staged_to_ = 0;
};

}  // namespace theseus
