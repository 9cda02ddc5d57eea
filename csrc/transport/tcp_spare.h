// The two ends of a spare connection: opened over a rail while that is healthy, for messages of connections whose own
// rail fails. Message by message it carries whatever is loaded; receipts come back over it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "net/socket.h"
#include "transport/flow_counters.h"
#include "transport/pacing.h"
#include "transport/tcp_connect.h"
#include "transport/tcp_port.h"
#include "transport/tcp_slot.h"

namespace theseus {

class SpareSender {
 public:
  // Starts to connect.
  SpareSender(TcpRoute route, const Hello& hello, size_t slot_bytes, Pacing* pacing);

  // Writes, reads receipts (`on_receipt`), and tells ports what has arrived. Messages on a connection that breaks are
  // put back; it counts as broken after a long silence, unless the peer is heard elsewhere.
  using OnReceipt = std::function<void(const TcpReceipt&)>;
  void progress(uint64_t now, bool heard_elsewhere, const OnReceipt& on_receipt);
  // The connection is up, or may come up.
  bool alive() const { return connector_.has_value() || socket_.valid(); }
  // It is up, and has nothing to write.
  bool ready() const { return socket_.valid() && !loaded_; }
  // Copies message `sequence` of `port`, and takes it on. False where there is no memory.
  bool load(TcpSendPort& port, uint64_t sequence);
  // Asks how far `port` has come.
  void ask(const TcpSendPort& port);
  // Bytes that the peer lacks, and how many have arrived. As for ports, behind a virtual NIC only receipts count.
  uint64_t under_way() const {
    if (!alive()) return 0;
    const uint64_t with_kernel = by_receipt() ? flying_bytes_ : meter_.handed() - meter_.acknowledged();
    return with_kernel + (loaded_ ? frame_.length() - sent_ : 0);
  }
  uint64_t acknowledged() const { return meter_.acknowledged(); }
  uint64_t bytes_arrived() const { return by_receipt() ? receipt_bytes_ : meter_.acknowledged(); }
  bool busy() const { return loaded_ || connector_.has_value(); }
  // Gives everything that has not arrived back to its ports. What is under way may still arrive.
  void put_back();
  const TcpRoute& route() const { return route_; }

  int wait_fd(uint64_t now) const;  // to become writable; -1: none
  int read_fd() const { return socket_.fd(); }
  uint64_t wait_until_ns() const;

 private:
  bool by_receipt() const { return pacing_ != nullptr; }
  void land();
  struct Flight {
    TcpSendPort* port;
    uint64_t sequence;
    uint64_t end;  // of the stream
    size_t bytes;
  };
  void connect_some();
  bool write_once(uint64_t now);
  void read_receipts(const OnReceipt& on_receipt);
  void sample(uint64_t now);
  void lose();
  TokenBucket* bucket() const { return pacing_ == nullptr ? nullptr : &pacing_->egress(route_.rail); }

  const TcpRoute route_;
  const size_t slot_bytes_;
  Pacing* pacing_;
  FlowMeter meter_;
  std::optional<TcpConnector> connector_;
  Socket socket_;
  bool loaded_ = false;
  TcpSlot frame_;
  size_t sent_ = 0;              // of frame_
  TcpSendPort* port_ = nullptr;  // whose message it is; null: a question
  std::deque<Flight> flights_;   // with the kernel
  uint64_t sample_at_ns_ = 0;
  uint64_t flying_bytes_ = 0;  // of flights_
  uint64_t receipt_bytes_ = 0;
  uint64_t read_at_ns_ = 0;
  uint64_t silence_check_ns_ = 0;
  TcpReceipt receipt_;
  size_t receipt_got_ = 0;
};

class SpareReceiver {
 public:
  SpareReceiver(int rail, Socket socket, size_t slot_bytes, Pacing* pacing);

  // Reads what is there; `deliver` gets each message and question. Not ok: what came is none.
  using Deliver = std::function<Status(SpareReceiver&, TcpSlot)>;
  Status progress(const Deliver& deliver);
  bool alive() const { return socket_.valid(); }
  // False where the socket has no room for it: say it again later.
  bool say(const TcpReceipt& receipt);
  int rail() const { return rail_; }
  int wait_fd(uint64_t now) const;
  uint64_t wait_until_ns() const;

 private:
  bool read_once(const Deliver& deliver, Status* status);
  TokenBucket* bucket() const { return pacing_ == nullptr ? nullptr : &pacing_->ingress(rail_); }

  const int rail_;
  const size_t slot_bytes_;
  Pacing* pacing_;
  Socket socket_;
  TcpHeader header_;
  size_t received_ = 0;  // of header and payload
  TcpSlot message_;
  TcpReceipt receipt_;  // being sent
  size_t said_ = sizeof(TcpReceipt);
};

}  // namespace theseus
