#include "transport/tcp_port.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/env.h"

namespace theseus {
namespace {

// Paced: little may sit in the socket, or the last piece sticks on a slow NIC. Else as much as keeps both ends busy.
constexpr int kPacedBuffer = 64 << 10;
constexpr int kBuffer = 512 << 10;
constexpr int kBatch = 16;  // messages in one system call
constexpr size_t kSmallestSlot = 4096;
constexpr uint64_t kSilenceCheckNs = 1'000'000'000;

bool is_lost(int error) {
  return error == ECONNRESET || error == EPIPE || error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH ||
         error == ENETDOWN || error == ECONNABORTED;
}

}  // namespace

bool TcpSlot::reserve(size_t bytes, size_t slot_bytes) {
  if (bytes <= capacity_) [[likely]]
    return true;
  const size_t capacity = std::max(bytes, std::min(slot_bytes, std::max(std::bit_ceil(bytes), kSmallestSlot)));
  const size_t room = (sizeof(TcpHeader) + capacity + 63) / 64 * 64;
  memory_.reset(static_cast<uint8_t*>(std::aligned_alloc(64, room)));
  capacity_ = memory_ == nullptr ? 0 : capacity;
  return memory_ != nullptr;
}

TcpSendPort::TcpSendPort(TcpRoute route, const Hello& hello, size_t slot_bytes, int slots, Pacing* pacing)
    : route_(std::move(route)),
      slot_bytes_(slot_bytes),
      slots_(static_cast<size_t>(slots)),
      pacing_(pacing),
      flow_(flow_counters(route_.host, route_.rail)) {
  connector_.emplace(route_, hello, settings::heartbeat_timeout(), pacing == nullptr ? kBuffer : kPacedBuffer);
  connect_some();
}

TcpSendPort::~TcpSendPort() { set_backlogged(false); }

void* TcpSendPort::acquire(size_t bytes) {
  if (posted_ - handed_ == slots_.size()) {
    write_some();
    if (posted_ - handed_ == slots_.size()) return nullptr;
  }
  TcpSlot& slot = slots_[position_];
  if (!slot.reserve(std::max<size_t>(bytes, 1), slot_bytes_)) {
    if (status_.ok()) status_ = Status::system("no memory for messages to " + route_.describe());
    return nullptr;
  }
  return slot.payload();
}

void TcpSendPort::commit(size_t bytes) {
  TcpHeader& header = *new (slots_[position_].header()) TcpHeader;
  header.bytes = static_cast<uint32_t>(bytes);
  header.sequence = posted_;
  if (tag_ != nullptr) {
    header.signature_hash = tag_->hash;
    header.signature = tag_->signature;
  }
  ++posted_;
  if (++position_ == slots_.size()) position_ = 0;
  if (!backlogged_) write_some();
}

Status TcpSendPort::progress() {
  if (connector_.has_value()) connect_some();
  if (pending()) write_some();
  return status_;
}

void TcpSendPort::connect_some() {
  if (!status_.ok()) return;
  Result<bool> done = connector_->advance();
  if (!done.ok()) {
    status_ = done.status();
    connector_.reset();
  } else if (*done) {
    socket_ = connector_->take_socket();
    connector_.reset();
  }
}

void TcpSendPort::write_some() {
  if (connector_.has_value()) connect_some();
  if (socket_.valid() && status_.ok()) {
    for (bool more = pending(); more && pending();) {
      if (TokenBucket* const limiter = bucket(); limiter == nullptr) {
        more = write_once(SIZE_MAX);
      } else {
        more = limiter->open(now_ns()) && write_once(limiter->quantum());
      }
    }
  }
  set_backlogged(pending());
}

// One system call; true where the kernel took all it was offered.
bool TcpSendPort::write_once(size_t limit) {
  iovec parts[kBatch];
  int count = 0;
  size_t offered = 0;
  size_t skip = offset_;
  for (uint64_t message = handed_; message != posted_ && count < kBatch && offered < limit; ++message) {
    TcpSlot& slot = slots_[message % slots_.size()];
    const size_t bytes = std::min(sizeof(TcpHeader) + slot.header()->bytes - skip, limit - offered);
    parts[count++] = {slot.start() + skip, bytes};
    offered += bytes;
    skip = 0;
  }
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
  if (TokenBucket* const limiter = bucket(); limiter != nullptr) limiter->charge(static_cast<size_t>(sent), now_ns());
  handed_over(static_cast<size_t>(sent));
  return static_cast<size_t>(sent) == offered;
}

void TcpSendPort::handed_over(size_t bytes) {
  flow_.bytes.fetch_add(bytes, std::memory_order_relaxed);
  bytes_moved_ += bytes;
  offset_ += bytes;
  uint64_t whole = 0;
  while (handed_ != posted_) {
    const size_t length = sizeof(TcpHeader) + slots_[handed_ % slots_.size()].header()->bytes;
    if (offset_ < length) break;
    offset_ -= length;
    ++handed_;
    ++whole;
  }
  flow_.messages.fetch_add(whole, std::memory_order_relaxed);
}

void TcpSendPort::set_backlogged(bool backlogged) {
  if (backlogged == backlogged_) [[likely]]
    return;
  backlogged_ = backlogged;
  backlogged ? flow_.begin_backlog() : flow_.end_backlog();
}

void TcpSendPort::fail(const char* doing, int error) {
  const std::string what = std::string("lost the connection while ") + doing + " " + route_.describe();
  status_ = is_lost(error) ? Status::remote(what + ": " + std::strerror(error)) : Status::from_errno(what, error);
}

// TCP_USER_TIMEOUT would also end connections whose receiver is alive but late to read, so look by ourselves: the
// peer's machine acknowledges nothing though we repeat.
Status TcpSendPort::watch_over(uint64_t now) {
  if (!socket_.valid() || !status_.ok() || now < silence_check_ns_) return status_;
  silence_check_ns_ = now + kSilenceCheckNs;
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(socket_.fd(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return status_;
  const double silent = info.tcpi_last_ack_recv / 1e3;
  if (info.tcpi_unacked > 0 && info.tcpi_retransmits > 0 && silent > settings::heartbeat_timeout()) {
    fail("sending to", ETIMEDOUT);
  }
  return status_;
}

int TcpSendPort::wait_fd(uint64_t now) const {
  if (!status_.ok()) return -1;
  if (connector_.has_value()) return connector_->fd();
  if (!pending()) return -1;
  if (const TokenBucket* const limiter = bucket(); limiter != nullptr && !limiter->open(now)) return -1;
  return socket_.fd();
}

uint64_t TcpSendPort::wait_until_ns() const {
  if (connector_.has_value()) return connector_->retry_at_ns();
  if (const TokenBucket* const limiter = bucket(); limiter != nullptr && pending()) return limiter->due();
  return 0;
}

}  // namespace theseus
