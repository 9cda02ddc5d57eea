#include "transport/tcp_spare.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/env.h"
#include "transport/tcp_kernel.h"

namespace theseus {
namespace {

// Little may sit in the socket: another rail may take the next message sooner.
constexpr int kBuffer = 64 << 10;
constexpr uint64_t kSampleNs = 1'000'000;
constexpr uint64_t kReadNs = 300'000;
constexpr uint64_t kSilenceCheckNs = 1'000'000'000;

}  // namespace

SpareSender::SpareSender(TcpRoute route, const Hello& hello, size_t slot_bytes, Pacing* pacing)
    : route_(std::move(route)),
      slot_bytes_(slot_bytes),
      pacing_(pacing),
      meter_(flow_counters(route_.identity, route_.rail, route_.host)) {
  connector_.emplace(route_, hello, settings::heartbeat_timeout(), kBuffer);
  connect_some();
}

void SpareSender::connect_some() {
  Result<bool> done = connector_->advance();
  if (!done.ok()) {
    connector_.reset();
  } else if (*done) {
    socket_ = connector_->take_socket();
    connector_.reset();
  }
}

bool SpareSender::load(TcpSendPort& port, uint64_t sequence) {
  const TcpSlot& message = port.message(sequence);
  const size_t bytes = message.header()->bytes;
  if (!frame_.reserve(std::max<size_t>(bytes, 1), slot_bytes_)) return false;
  std::memcpy(frame_.start(), message.start(), message.length());
  frame_.header()->rail = static_cast<uint16_t>(port.route().rail);
  frame_.header()->channel = static_cast<uint16_t>(port.route().channel);
  port.take_on(sequence);
  port.flow().rescued_messages.fetch_add(1, std::memory_order_relaxed);
  port.flow().rescued_bytes.fetch_add(bytes, std::memory_order_relaxed);
  port_ = &port;
  loaded_ = true;
  sent_ = 0;
  return true;
}

void SpareSender::ask(const TcpSendPort& port) {
  if (!frame_.reserve(1, slot_bytes_)) return;
  TcpHeader& header = *new (frame_.header()) TcpHeader;
  header.kind = TcpHeader::kQuestion;
  header.rail = static_cast<uint16_t>(port.route().rail);
  header.channel = static_cast<uint16_t>(port.route().channel);
  port_ = nullptr;
  loaded_ = true;
  sent_ = 0;
}

void SpareSender::progress(uint64_t now, bool heard_elsewhere, const OnReceipt& on_receipt) {
  if (connector_.has_value()) connect_some();
  while (loaded_ && socket_.valid()) {
    if (TokenBucket* const limiter = bucket(); limiter != nullptr && !limiter->open(now_ns())) break;
    if (!write_once(now)) break;
  }
  if (loaded_ && socket_.valid()) meter_.begin_backlog(now);
  if (socket_.valid() && now >= read_at_ns_) {
    read_at_ns_ = now + kReadNs;
    read_receipts(on_receipt);
  }
  if (socket_.valid() && now >= sample_at_ns_ && (under_way() > 0 || meter_.backlogged())) sample(now);
  if (socket_.valid() && now >= silence_check_ns_) {
    silence_check_ns_ = now + kSilenceCheckNs;
    if (!heard_elsewhere && silent_seconds(socket_.fd()) > settings::heartbeat_timeout()) lose();
  }
}

// True where the kernel took all it was offered.
bool SpareSender::write_once(uint64_t now) {
  TokenBucket* const limiter = bucket();
  const size_t left = frame_.length() - sent_;
  const size_t offered = limiter == nullptr ? left : std::min(left, limiter->quantum());
  const ssize_t sent = send(socket_.fd(), frame_.start() + sent_, offered, MSG_NOSIGNAL);
  if (sent < 0) {
    if (errno == EINTR) return true;
    if (errno != EAGAIN) lose();
    return false;
  }
  const auto bytes = static_cast<size_t>(sent);
  if (limiter != nullptr) limiter->charge(bytes, now);
  sent_ += bytes;
  const bool whole = sent_ == frame_.length();
  meter_.handed_over(bytes, whole ? 1 : 0);
  if (whole) {
    loaded_ = false;
    if (port_ != nullptr) {
      flights_.push_back({port_, frame_.header()->sequence, meter_.handed(), frame_.length()});
      flying_bytes_ += frame_.length();
      port_->carried(frame_.header()->sequence);
    }
  }
  return bytes == offered;
}

void SpareSender::read_receipts(const OnReceipt& on_receipt) {
  for (;;) {
    const ssize_t got =
        recv(socket_.fd(), reinterpret_cast<char*>(&receipt_) + receipt_got_, sizeof receipt_ - receipt_got_, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0 || (got < 0 && errno != EAGAIN)) return lose();
    if (got < 0) return;
    receipt_got_ += static_cast<size_t>(got);
    if (receipt_got_ < sizeof receipt_) continue;
    receipt_got_ = 0;
    if (receipt_.magic != TcpReceipt::kMagic) return lose();
    on_receipt(receipt_);
  }
}

void SpareSender::sample(uint64_t now) {
  sample_at_ns_ = now + kSampleNs;
  const std::optional<uint64_t> unacknowledged = unacknowledged_bytes(socket_.fd());
  if (!unacknowledged.has_value()) return;
  meter_.sample(now, *unacknowledged, 0, loaded_);
  if (by_receipt()) return land();
  while (!flights_.empty() && flights_.front().end <= meter_.acknowledged()) {
    flights_.front().port->arrived(flights_.front().sequence);
    flying_bytes_ -= flights_.front().bytes;
    flights_.pop_front();
  }
}

void SpareSender::land() {
  std::erase_if(flights_, [this](const Flight& flight) {
    if (!flight.port->has_arrived(flight.sequence)) return false;
    flying_bytes_ -= flight.bytes;
    receipt_bytes_ += flight.bytes;
    return true;
  });
}

void SpareSender::put_back() {
  for (const Flight& flight : flights_) flight.port->put_back(flight.sequence);
  flights_.clear();
  flying_bytes_ = 0;
  if (loaded_ && port_ != nullptr) {
    port_->put_back(frame_.header()->sequence);
    port_ = nullptr;  // the stream still needs the rest of what has begun
    loaded_ = sent_ > 0;
  }
}

void SpareSender::lose() {
  put_back();
  meter_.leave();
  socket_.close();
  loaded_ = false;
}

int SpareSender::wait_fd(uint64_t now) const {
  if (connector_.has_value()) return connector_->fd();
  if (!loaded_ || !socket_.valid()) return -1;
  if (const TokenBucket* const limiter = bucket(); limiter != nullptr && !limiter->open(now)) return -1;
  return socket_.fd();
}

uint64_t SpareSender::wait_until_ns() const {
  if (connector_.has_value()) return connector_->retry_at_ns();
  if (const TokenBucket* const limiter = bucket(); limiter != nullptr && loaded_ && socket_.valid()) {
    return limiter->due();
  }
  return 0;
}

SpareReceiver::SpareReceiver(int rail, Socket socket, size_t slot_bytes, Pacing* pacing)
    : rail_(rail), slot_bytes_(slot_bytes), pacing_(pacing), socket_(std::move(socket)) {
  socket_.set_data_options(kBuffer * 4);
}

Status SpareReceiver::progress(const Deliver& deliver) {
  Status status;
  if (said_ < sizeof receipt_) say(receipt_);
  while (socket_.valid() && read_once(deliver, &status)) {
  }
  return status;
}

// True where more may be there.
bool SpareReceiver::read_once(const Deliver& deliver, Status* status) {
  TokenBucket* const limiter = bucket();
  if (limiter != nullptr && !limiter->open(now_ns())) return false;
  const bool in_header = received_ < sizeof header_;
  uint8_t* const to = in_header ? reinterpret_cast<uint8_t*>(&header_) + received_ : message_.start() + received_;
  size_t wanted = (in_header ? sizeof header_ : message_.length()) - received_;
  if (limiter != nullptr) wanted = std::min(wanted, limiter->quantum());
  const ssize_t got = recv(socket_.fd(), to, wanted, 0);
  if (got < 0 && errno == EINTR) return true;
  if (got <= 0) {
    if (got == 0 || errno != EAGAIN) socket_.close();
    return false;
  }
  if (limiter != nullptr) limiter->charge(static_cast<size_t>(got), now_ns());
  received_ += static_cast<size_t>(got);
  if (received_ < sizeof header_) return true;
  if (in_header) {
    if (header_.magic != TcpHeader::kMagic || header_.bytes > slot_bytes_) {
      socket_.close();
      *status = Status::internal("what came over a spare connection on rail " + std::to_string(rail_) +
                                 " is no message: another version of the library, or a stranger on the connection");
      return false;
    }
    if (!message_.reserve(std::max<size_t>(header_.bytes, 1), slot_bytes_)) {
      *status = Status::system("no memory for messages that come over another rail");
      return false;
    }
    new (message_.header()) TcpHeader(header_);
  }
  if (received_ < message_.length()) return true;
  received_ = 0;
  *status = deliver(*this, std::move(message_));
  return status->ok();
}

bool SpareReceiver::say(const TcpReceipt& receipt) {
  if (!socket_.valid()) return false;
  const bool fresh = said_ == sizeof receipt_;
  if (fresh) {
    receipt_ = receipt;
    said_ = 0;
  }
  const ssize_t sent =
      send(socket_.fd(), reinterpret_cast<const char*>(&receipt_) + said_, sizeof receipt_ - said_, MSG_NOSIGNAL);
  if (sent > 0) said_ += static_cast<size_t>(sent);
  return fresh;
}

int SpareReceiver::wait_fd(uint64_t now) const {
  if (const TokenBucket* const limiter = bucket(); limiter != nullptr && !limiter->open(now)) return -1;
  return socket_.fd();
}

uint64_t SpareReceiver::wait_until_ns() const {
  const TokenBucket* const limiter = bucket();
  return limiter != nullptr && socket_.valid() ? limiter->due() : 0;
}

}  // namespace theseus
