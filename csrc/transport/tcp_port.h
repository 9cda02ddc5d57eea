// The sending end of a TCP connection as a port: a ring of slots in user space, and a non-blocking socket.
//
// The ring is what guarantees that slots() messages fit before the receiver looks. Where first aid is at hand (TcpAid),
// a message is kept until the peer's kernel has acknowledged it, so that it can go over another rail though this one
// has swallowed it; what is kept beyond the ring is bounded by the socket's buffer. Behind a virtual NIC the peer's
// kernel is still the network, and only the peer's receipt counts. Memory is handed from message to message, the last
// used first.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "net/socket.h"
#include "transport/flow_counters.h"
#include "transport/pacing.h"
#include "transport/port.h"
#include "transport/tcp_connect.h"
#include "transport/tcp_slot.h"
#include "transport/tcp_watch.h"

namespace theseus {

class TcpSendPort final : public SendPort {
 public:
  struct Options {
    size_t slot_bytes = 0;
    int slots = 0;
    Pacing* pacing = nullptr;  // null: unpaced
    Tended* tended = nullptr;  // what the port is part of
    bool aided = false;        // keep messages until they are acknowledged
  };
  // Starts to connect.
  TcpSendPort(TcpRoute route, const Hello& hello, const Options& options);

  size_t slot_bytes() const override { return options_.slot_bytes; }
  int slots() const override { return options_.slots; }
  void set_tag(const SignatureTag& tag) override { tag_ = &tag; }
  void* acquire(size_t bytes) override;
  void commit(size_t bytes) override;
  bool can_reference(const void*, size_t, size_t) const override { return false; }
  bool post_reference(const void*, size_t) override { return false; }
  uint64_t posted() const override { return posted_; }
  uint64_t released() override {
    options_.tended->enter();
    return handed_;
  }
  Status progress() override;
  // The same for whoever holds the links already: their user, or the watch that borrowed them.
  Status advance();

  const TcpRoute& route() const { return route_; }
  const Status& state() const { return status_; }
  // Looks whether the peer's machine is silent, now and then: the connection is lost where it is.
  void watch_over(uint64_t now, bool heard_elsewhere);
  // Asks the kernel what the peer has acknowledged.
  void sample(uint64_t now);
  // The same where it is worth knowing, and not asked for too often.
  void sample_if_due(uint64_t now) {
    if (now >= sample_at_ns_ && (meter_.backlogged() || acked_ != posted_)) sample(now);
  }
  uint64_t bytes_moved() const { return meter_.handed(); }
  // Messages that neither this connection's socket nor another rail's has taken whole.
  bool pending() const { return handed_ != posted_; }
  // True where progress() could do something, now or later.
  bool busy() const { return writable() || connector_.has_value(); }
  // True where something has to be watched though nobody waits: unacknowledged messages, the rest of a rescued one, an
  // open backlog.
  bool unsettled() const { return acked_ != posted_ || tail_.valid() || meter_.backlogged(); }
  // What to wait for: this descriptor to become writable (-1: none), or this time (0: none).
  int wait_fd(uint64_t now) const;
  uint64_t wait_until_ns() const;

  // --- For TcpAid. Messages are named by their sequence numbers.

  const FlowMeter& meter() const { return meter_; }
  FlowCounters& flow() { return meter_.flow(); }
  // Bytes are on their way over the connection itself, or should be.
  bool under_way() const { return socket_.valid() && (bytes_arrived() < meter_.handed() || writable()); }
  // How many bytes, at most; and how many have arrived.
  uint64_t bytes_under_way() const;
  uint64_t bytes_arrived() const { return by_receipt() ? receipt_read_ : meter_.acknowledged(); }
  // The time for which the receiver, not the network, has held up what waits here.
  uint64_t held_up_ns() const { return held_up_ns_; }
  // The connection broke; its messages need another way.
  bool lost() const { return !lost_.ok(); }
  // There is none: the port fails.
  void give_up() {
    if (status_.ok()) status_ = lost_;
  }
  // What the rail carries, in bytes per second: the socket holds no more than a few milliseconds of it, within bounds,
  // so that the last piece does not stick in a slow one.
  void fit_buffer(double rate);
  // From now on nothing new goes over the connection itself, but for `allowance` messages.
  void hold_back(bool held, int allowance = 0);
  // The oldest message that no other connection has taken on, and that the receiver has room for: of those that this
  // connection has passed by, of those that it has not begun as well, or of all that are not acknowledged.
  enum class Which { Orphaned, Waiting, All };
  std::optional<uint64_t> neglected(Which which) const;
  const TcpSlot& message(uint64_t sequence) const { return at(sequence).memory; }
  void take_on(uint64_t sequence);   // another connection will carry it
  void carried(uint64_t sequence);   // that one's socket has it whole
  void arrived(uint64_t sequence);   // and the peer's kernel
  void put_back(uint64_t sequence);  // it did not get there
  bool has_arrived(uint64_t sequence) const { return !kept(sequence) || (at(sequence).flags & kArrived) != 0; }
  void heard(const TcpReceipt& receipt);
  // The receiver has no room for more, as far as we know.
  bool window_full() const { return posted_ > window_end(); }

 private:
  enum Flag : uint8_t { kWired = 1, kTaken = 2, kCarried = 4, kArrived = 8 };
  struct Outgoing {
    TcpSlot memory;
    uint64_t end = 0;   // kWired: bytes of the stream up to its end
    uint8_t flags = 0;  // Wired: this connection's socket has it whole. The others are TcpAid's.
  };
  static constexpr uint64_t kWindow = 16;  // messages that may overtake the receiver on other rails

  Outgoing& at(uint64_t sequence) { return ring_[sequence & (ring_.size() - 1)]; }
  const Outgoing& at(uint64_t sequence) const { return ring_[sequence & (ring_.size() - 1)]; }
  bool kept(uint64_t sequence) const { return sequence >= acked_ && sequence < posted_; }
  bool writable() const { return tail_.valid() || (next_ != posted_ && !(held_back_ && allowance_ == 0)); }
  uint64_t window_end() const { return std::max(receipt_released_, wired_acked_) + kWindow; }
  bool by_receipt() const { return options_.aided && options_.pacing != nullptr; }
  TokenBucket* bucket() const { return options_.pacing == nullptr ? nullptr : &options_.pacing->egress(route_.rail); }

  bool worth_asking() const;
  void connect_some();
  void write_some();
  bool write_once(size_t limit);
  size_t handed_over(size_t bytes);
  void skip_taken();
  void settle();
  void recycle(Outgoing& message);
  void leave_to_tail(Outgoing& message);
  void fail(const char* doing, int error);
  void lose();

  const TcpRoute route_;
  const Options options_;
  std::vector<Outgoing> ring_;
  std::vector<TcpSlot> free_;
  FlowMeter meter_;
  std::optional<TcpConnector> connector_;
  Socket socket_;
  Status status_;
  Status lost_;
  const SignatureTag* tag_ = nullptr;
  // acked_ <= handed_ <= posted_, acked_ <= next_ <= posted_.
  uint64_t posted_ = 0;
  uint64_t handed_ = 0;  // all below are with a kernel in full
  uint64_t acked_ = 0;   // all below need no memory any more
  uint64_t next_ = 0;    // all below this connection is done with
  size_t offset_ = 0;    // bytes of next_ that the socket has already
  // The rest of a message that arrived another way: the stream must not lack it.
  TcpSlot tail_;
  size_t tail_from_ = 0;
  bool held_back_ = false;
  int allowance_ = 0;
  uint64_t wired_acked_ = 0;  // messages of this connection that its peer's kernel acknowledged: all below
  uint64_t receipt_released_ = 0;
  uint64_t receipt_complete_ = 0;
  uint64_t receipt_read_ = 0;
  uint64_t retry_at_ns_ = 0;
  uint64_t sample_at_ns_ = 0;
  uint64_t held_up_at_ns_ = 0;  // when to ask next
  int buffer_ = 0;              // bytes, where fitted
  uint64_t held_up_ns_ = 0;     // time for which the receiver took nothing, so far
  bool window_closed_ = false;  // when last seen
  uint64_t window_seen_ns_ = 0;
  uint64_t silence_check_ns_ = 0;
};

// What happened to a connection: the network's or the peer's fault, which another rail may not share.
bool is_lost(int error);

}  // namespace theseus
