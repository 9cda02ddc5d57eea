#include "transport/tcp_port.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/env.h"
#include "transport/tcp_kernel.h"

namespace theseus {
namespace {

// Paced: little may sit in the socket, or the last piece sticks on a slow NIC. Else as much as keeps both ends busy.
constexpr int kPacedBuffer = 64 << 10;
constexpr int kBuffer = 512 << 10;
constexpr size_t kKept = 256;  // messages kept at most, a power of two
constexpr int kBatch = 16;     // messages in one system call
constexpr uint64_t kSilenceCheckNs = 1'000'000'000;
constexpr uint64_t kSampleNs = 5'000'000;
constexpr uint64_t kBacklogBytes = 32 << 10;
constexpr uint64_t kDrainSampleNs = 1'000'000;  // the sooner the end of a backlog is seen, the less idle time counts
// With so much kept it is worth asking whether it may go: memory that was used just now is still in the cache.
constexpr uint64_t kAskMessages = 8;
constexpr uint64_t kAskBytes = 32 << 10;
// All kept, and the peer has acknowledged none: look again after this time.
constexpr uint64_t kRingFullNs = 500'000;

}  // namespace

bool is_lost(int error) {
  return error == ECONNRESET || error == EPIPE || error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH ||
         error == ENETDOWN || error == ECONNABORTED;
}

TcpSendPort::TcpSendPort(TcpRoute route, const Hello& hello, const Options& options)
    : route_(std::move(route)),
      options_(options),
      ring_(options.aided ? kKept : std::bit_ceil(static_cast<size_t>(options.slots))),
      meter_(flow_counters(route_.identity, route_.rail, route_.host)) {
  connector_.emplace(route_, hello, settings::heartbeat_timeout(), options.pacing == nullptr ? kBuffer : kPacedBuffer);
  connect_some();
}

void* TcpSendPort::acquire(size_t bytes) {
  options_.tended->enter();
  if (posted_ - handed_ >= static_cast<uint64_t>(options_.slots)) {
    write_some();
    if (posted_ - handed_ >= static_cast<uint64_t>(options_.slots)) return nullptr;
  }
  if (posted_ - acked_ == ring_.size()) {
    const uint64_t now = now_ns();
    if (now >= retry_at_ns_) sample(now);
    retry_at_ns_ = now + kRingFullNs;
    if (posted_ - acked_ == ring_.size()) return nullptr;
  }
  Outgoing& slot = at(posted_);
  if (!slot.memory.valid()) {
    if (free_.empty() && worth_asking()) sample(now_ns());
    if (!free_.empty()) {
      slot.memory = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (!slot.memory.reserve(std::max<size_t>(bytes, 1), options_.slot_bytes)) {
    if (status_.ok()) status_ = Status::system("no memory for messages to " + route_.describe());
    return nullptr;
  }
  return slot.memory.payload();
}

bool TcpSendPort::worth_asking() const {
  return handed_ - acked_ >= kAskMessages ||
         (handed_ != acked_ && meter_.handed() - meter_.acknowledged() >= kAskBytes);
}

void TcpSendPort::commit(size_t bytes) {
  TcpHeader& header = *new (at(posted_).memory.header()) TcpHeader;
  header.bytes = static_cast<uint32_t>(bytes);
  header.sequence = posted_;
  if (tag_ != nullptr) {
    header.signature_hash = tag_->hash;
    header.signature = tag_->signature;
  }
  ++posted_;
  // A socket that refused the message before need not be asked for each one.
  if (posted_ - handed_ == 1 || !meter_.backlogged()) write_some();
}

Status TcpSendPort::progress() {
  options_.tended->enter();
  return advance();
}

Status TcpSendPort::advance() {
  if (connector_.has_value()) connect_some();
  if (writable()) write_some();
  return status_;
}

void TcpSendPort::connect_some() {
  if (!status_.ok()) return;
  Result<bool> done = connector_->advance();
  if (!done.ok()) {
    lost_ = done.status();
    if (!options_.aided) status_ = lost_;
    connector_.reset();
    lose();
  } else if (*done) {
    socket_ = connector_->take_socket();
    connector_.reset();
  }
}

void TcpSendPort::write_some() {
  if (connector_.has_value()) connect_some();
  if (socket_.valid() && status_.ok()) {
    for (bool more = writable(); more && writable();) {
      if (TokenBucket* const limiter = bucket(); limiter == nullptr) {
        more = write_once(SIZE_MAX);
      } else {
        more = limiter->open(now_ns()) && write_once(limiter->quantum());
      }
    }
  }
  if (socket_.valid() && writable() && !meter_.backlogged()) meter_.begin_backlog(now_ns());
}

// One system call; true where the kernel took all it was offered.
bool TcpSendPort::write_once(size_t limit) {
  skip_taken();
  iovec parts[kBatch];
  int count = 0;
  size_t offered = 0;
  const auto offer = [&](uint8_t* from, size_t bytes) {
    parts[count++] = {from, std::min(bytes, limit - offered)};
    offered += parts[count - 1].iov_len;
  };
  if (tail_.valid()) offer(tail_.start() + tail_from_, tail_.length() - tail_from_);
  size_t skip = offset_;
  uint64_t most = held_back_ ? static_cast<uint64_t>(allowance_) : UINT64_MAX;
  for (uint64_t sequence = next_; sequence != posted_ && count < kBatch && offered < limit && most > 0; ++sequence) {
    Outgoing& message = at(sequence);
    if (message.flags != 0 && skip == 0) continue;  // another rail's
    offer(message.memory.start() + skip, message.memory.length() - skip);
    skip = 0;
    --most;
  }
  if (count == 0) return false;
  ssize_t sent;
  if (count == 1) {
    sent = send(socket_.fd(), parts[0].iov_base, parts[0].iov_len, MSG_NOSIGNAL);
  } else {
    msghdr all{};
    all.msg_iov = parts;
    all.msg_iovlen = static_cast<size_t>(count);
    sent = sendmsg(socket_.fd(), &all, MSG_NOSIGNAL);
  }
  if (sent < 0) {
    if (errno == EINTR) return true;
    if (errno != EAGAIN) fail("sending to", errno);
    return false;
  }
  const auto bytes = static_cast<size_t>(sent);
  if (TokenBucket* const limiter = bucket(); limiter != nullptr) limiter->charge(bytes, now_ns());
  meter_.handed_over(bytes, handed_over(bytes));
  return bytes == offered;
}

// What the socket has taken; returns the messages that are with it whole now.
size_t TcpSendPort::handed_over(size_t bytes) {
  const uint64_t end = meter_.handed() + bytes;
  if (tail_.valid()) {
    const size_t rest = std::min(bytes, tail_.length() - tail_from_);
    tail_from_ += rest;
    bytes -= rest;
    if (tail_from_ == tail_.length()) free_.push_back(std::move(tail_));
  }
  bool begun = offset_ > 0;
  offset_ += bytes;
  size_t whole = 0;
  for (; next_ != posted_; ++next_) {
    Outgoing& message = at(next_);
    if (message.flags != 0 && !begun) continue;  // another rail's
    const size_t length = message.memory.length();
    if (offset_ < length) break;
    offset_ -= length;
    message.flags |= kWired;
    message.end = end - offset_;
    ++whole;
    begun = false;
    if (allowance_ > 0) --allowance_;
  }
  settle();
  return whole;
}

// Passes by what another rail has taken on before a byte of it went out here.
void TcpSendPort::skip_taken() {
  while (next_ != posted_ && offset_ == 0 && at(next_).flags != 0) ++next_;
}

void TcpSendPort::settle() {
  while (handed_ != posted_ &&
         ((at(handed_).flags & (kWired | kCarried | kArrived)) != 0 || handed_ < receipt_complete_)) {
    ++handed_;
  }
  while (acked_ != handed_) {
    Outgoing& message = at(acked_);
    const bool wired = (message.flags & kWired) != 0;
    const bool here = wired && (!options_.aided || message.end <= bytes_arrived());
    if (!here && (message.flags & kArrived) == 0 && acked_ >= receipt_complete_) break;
    if (here) wired_acked_ = acked_ + 1;
    if (acked_ == next_) leave_to_tail(message);
    recycle(message);
    ++acked_;
  }
}

// A message that arrived another way while this connection was at it, or had not begun.
void TcpSendPort::leave_to_tail(Outgoing& message) {
  if (offset_ > 0) {
    tail_ = std::move(message.memory);
    tail_from_ = offset_;
    offset_ = 0;
  }
  ++next_;
}

void TcpSendPort::recycle(Outgoing& message) {
  if (message.memory.valid()) free_.push_back(std::move(message.memory));
  message.end = 0;
  message.flags = 0;
}

void TcpSendPort::sample(uint64_t now) {
  sample_at_ns_ = now + (pending() ? kSampleNs : kDrainSampleNs);
  if (!socket_.valid()) return;
  const std::optional<uint64_t> unacknowledged = unacknowledged_bytes(socket_.fd());
  if (!unacknowledged.has_value()) return;
  if (*unacknowledged == 0) {
    window_closed_ = false;
  } else if (options_.pacing == nullptr && now >= held_up_at_ns_) {
    const bool closed = window_is_closed(socket_.fd());
    if (closed && window_closed_) held_up_ns_ += now - window_seen_ns_;
    window_closed_ = closed;
    window_seen_ns_ = now;
    held_up_at_ns_ = now + kSampleNs;
  }
  // A socket that took all there was is waited for all the same, if the NIC has most of it still to send.
  if (*unacknowledged >= kBacklogBytes && !meter_.backlogged()) meter_.begin_backlog(now);
  meter_.sample(now, *unacknowledged, held_up_ns_, writable());
  settle();
}

uint64_t TcpSendPort::bytes_under_way() const {
  uint64_t bytes = socket_.valid() ? meter_.handed() - std::min(meter_.handed(), bytes_arrived()) : 0;
  for (uint64_t sequence = next_; sequence != posted_; ++sequence) {
    if (at(sequence).flags == 0) bytes += at(sequence).memory.length();
  }
  return bytes;
}

void TcpSendPort::fail(const char* doing, int error) {
  const std::string what = std::string("lost the connection while ") + doing + " " + route_.describe();
  lost_ = is_lost(error) ? Status::remote(what + ": " + std::strerror(error)) : Status::from_errno(what, error);
  if (!options_.aided || !is_lost(error)) status_ = lost_;
  lose();
}

// The stream ends here: what was with the socket and is not acknowledged has to go another way.
void TcpSendPort::lose() {
  sample(now_ns());
  meter_.leave();
  socket_.close();
  tail_ = {};
  offset_ = 0;
  for (uint64_t sequence = acked_; sequence != posted_; ++sequence) {
    at(sequence).flags &= static_cast<uint8_t>(~kWired);
  }
  handed_ = acked_;
  next_ = posted_;
  settle();
}

// TCP_USER_TIMEOUT would also end connections whose receiver is alive but late to read, so look by ourselves: the
// peer's machine acknowledges nothing though we repeat. Where it is heard over other rails, this one may recover.
void TcpSendPort::watch_over(uint64_t now, bool heard_elsewhere) {
  if (!socket_.valid() || !status_.ok() || now < silence_check_ns_) return;
  silence_check_ns_ = now + kSilenceCheckNs;
  if (!heard_elsewhere && silent_seconds(socket_.fd()) > settings::heartbeat_timeout()) fail("sending to", ETIMEDOUT);
}

int TcpSendPort::wait_fd(uint64_t now) const {
  if (!status_.ok()) return -1;
  if (connector_.has_value()) return connector_->fd();
  if (!writable() || !socket_.valid()) return -1;
  if (const TokenBucket* const limiter = bucket(); limiter != nullptr && !limiter->open(now)) return -1;
  return socket_.fd();
}

uint64_t TcpSendPort::wait_until_ns() const {
  if (connector_.has_value()) return connector_->retry_at_ns();
  if (!socket_.valid() || !status_.ok()) return 0;
  if (const TokenBucket* const limiter = bucket(); limiter != nullptr && writable()) return limiter->due();
  return posted_ - acked_ == ring_.size() ? retry_at_ns_ : 0;
}

}  // namespace theseus
