#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "transport/tcp_recv_port.h"

namespace theseus {
namespace {

constexpr int kPacedBuffer = 256 << 10;
constexpr int kBuffer = 512 << 10;
constexpr size_t kStagingBytes = 8 << 10;
constexpr int kMaxSlots = 4;
constexpr uint64_t kFarthest = 1 << 20;  // messages ahead
constexpr size_t kMostEver = 4096;       // messages that wait for one before them
// Sockets that wait for a port; beyond this someone misbehaves.
constexpr size_t kMostWaiting = 1 << 16;

}  // namespace

void TcpInbox::put(const Hello& hello, Socket socket) {
  const std::lock_guard lock(mutex_);
  if (sockets_.size() >= kMostWaiting) return;
  // A sender whose first attempt got lost half way comes again: the newer one counts.
  sockets_[{hello.source, hello.rail, hello.channel}] = std::move(socket);
  arrivals_.fetch_add(1, std::memory_order_release);
  if (wake_) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
  }
}

bool TcpInbox::changed(uint64_t* seen) const {
  const uint64_t arrivals = arrivals_.load(std::memory_order_acquire);
  if (arrivals == *seen) return false;
  *seen = arrivals;
  return true;
}

Socket TcpInbox::take(int source, int rail, int channel) {
  const std::lock_guard lock(mutex_);
  const auto found = sockets_.find({source, rail, channel});
  if (found == sockets_.end()) return {};
  Socket socket = std::move(found->second);
  sockets_.erase(found);
  return socket;
}

int TcpInbox::wake_fd() {
  const std::lock_guard lock(mutex_);
  if (!wake_) wake_ = Fd(eventfd(arrivals_.load() == 0 ? 0 : 1, EFD_CLOEXEC | EFD_NONBLOCK));
  return wake_.get();
}

void TcpInbox::clear() {
  const std::lock_guard lock(mutex_);
  if (!wake_) return;
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(wake_.get(), &count, sizeof count);
}

TcpRecvPort::TcpRecvPort(TcpRoute route, std::shared_ptr<TcpInbox> inbox, size_t slot_bytes, int slots, Pacing* pacing)
    : route_(std::move(route)),
      inbox_(std::move(inbox)),
      slot_bytes_(slot_bytes),
      slots_(static_cast<size_t>(std::min(slots, kMaxSlots))),
      pacing_(pacing) {}

const Message* TcpRecvPort::peek() {
  if (complete_ == released_) {
    read_some();
    if (complete_ == released_) {
      if (eof_ && status_.ok() && !another_way_) {
        status_ = Status::remote("rank " + std::to_string(route_.peer) + " (" + route_.host +
                                 ") closed its connection on rail " + std::to_string(route_.rail) +
                                 " while a message from it was awaited");
      }
      return nullptr;
    }
  }
  const TcpSlot& slot = at(released_);
  message_.data = slot.payload();
  message_.bytes = slot.header()->bytes;
  message_.signature_hash = slot.header()->signature_hash;
  message_.kind = MessageKind::Copied;
  return &message_;
}

Status TcpRecvPort::fetch(void*, size_t, size_t) {
  return Status::internal("a message that came over TCP was to be fetched from the sender's memory");
}

void TcpRecvPort::release() { ++released_; }

RequestSignature TcpRecvPort::peer_signature() {
  const TcpHeader& header = *at(released_).header();
  RequestSignature signature = header.signature;
  signature.request = (header.signature_hash - base_hash(signature)) * kRequestFactorInverse;
  return signature;
}

Status TcpRecvPort::progress() {
  read_some();
  return status_;
}

bool TcpRecvPort::find_socket() {
  if (!inbox_->changed(&inbox_seen_)) return false;
  socket_ = inbox_->take(route_.peer, route_.rail, route_.channel);
  if (!socket_.valid()) return false;
  socket_.set_data_options(pacing_ == nullptr ? kBuffer : kPacedBuffer);
  staging_.resize(kStagingBytes);
  return true;
}

void TcpRecvPort::read_some() {
  if (!early_messages_.empty()) settle();
  if (!socket_.valid() && !find_socket()) return;
  if (!parse_staged()) return;
  while (may_read()) {
    if (TokenBucket* const limiter = bucket(); limiter == nullptr) {
      if (!read_once(SIZE_MAX)) return;
    } else if (!limiter->open(now_ns()) || !read_once(limiter->quantum())) {
      return;
    }
  }
}

// One system call; true where more may be there. Fills the current message, then the staging area.
bool TcpRecvPort::read_once(size_t limit) {
  iovec parts[2];
  int count = 0;
  size_t asked = 0;
  if (in_message_) {
    asked = std::min(missing(), limit);
    parts[count++] = {incoming().payload() + received_, asked};
  }
  const size_t direct = asked;
  if (asked < limit) {
    const size_t room = std::min(staging_.size() - staged_to_, limit - asked);
    parts[count++] = {staging_.data() + staged_to_, room};
    asked += room;
  }
  const ssize_t got =
      count == 1 ? recv(socket_.fd(), parts[0].iov_base, parts[0].iov_len, 0) : readv(socket_.fd(), parts, count);
  if (got < 0 && errno == EINTR) return true;
  if (got <= 0) {
    if (got == 0 || errno != EAGAIN) ended(got == 0 ? 0 : errno);
    return false;
  }
  const size_t bytes = static_cast<size_t>(got);
  bytes_moved_ += bytes;
  if (TokenBucket* const limiter = bucket(); limiter != nullptr) limiter->charge(bytes, now_ns());
  const size_t filled = std::min(bytes, direct);
  received_ += filled;
  staged_to_ += bytes - filled;
  if (in_message_ && missing() == 0) end_message();
  return parse_staged() && bytes == asked;
}

// Moves what was staged into slots, as far as there are any; false where the connection is dead.
bool TcpRecvPort::parse_staged() {
  while (staged_from_ != staged_to_ && (in_message_ || discard_ > 0 || may_begin())) {
    const size_t staged = staged_to_ - staged_from_;
    if (discard_ > 0) {
      const size_t bytes = std::min(discard_, staged);
      discard_ -= bytes;
      staged_from_ += bytes;
      continue;
    }
    if (!in_message_) {
      if (staged < sizeof(TcpHeader)) break;
      TcpHeader header;
      std::memcpy(static_cast<void*>(&header), staging_.data() + staged_from_, sizeof header);
      if (!begin_message(header)) return false;
      staged_from_ += sizeof header;
      if (!in_message_) continue;
    }
    const size_t bytes = std::min(missing(), staged_to_ - staged_from_);
    std::memcpy(incoming().payload() + received_, staging_.data() + staged_from_, bytes);
    staged_from_ += bytes;
    received_ += bytes;
    if (missing() == 0) end_message();
  }
  if (staged_from_ == staged_to_) {
    staged_from_ = staged_to_ = 0;
  } else if (staged_from_ > 0 && may_begin()) {
    std::memmove(staging_.data(), staging_.data() + staged_from_, staged_to_ - staged_from_);
    staged_to_ -= staged_from_;
    staged_from_ = 0;
  }
  return status_.ok();
}

// Gaps are filled by what comes over other rails, and so are never long.
bool TcpRecvPort::sound(const TcpHeader& header) const {
  return header.magic == TcpHeader::kMagic && header.kind == TcpHeader::kMessage && header.bytes <= slot_bytes_ &&
         header.sequence < complete_ + kFarthest;
}

Status TcpRecvPort::refuse() {
  return Status::internal("what came from " + route_.describe() + " is no message " + std::to_string(complete_) +
                          " of at most " + std::to_string(slot_bytes_) +
                          " bytes: another version of the library, or a stranger on the connection");
}

bool TcpRecvPort::begin_message(const TcpHeader& header) {
  if (!sound(header)) {
    status_ = refuse();
    return false;
  }
  if (header.sequence < complete_ || early_messages_.contains(header.sequence)) {
    discard_ = header.bytes;
    return true;
  }
  is_early_ = header.sequence != complete_;
  if (!incoming().reserve(std::max<size_t>(header.bytes, 1), slot_bytes_)) {
    status_ = Status::system("no memory for messages from " + route_.describe());
    return false;
  }
  new (incoming().header()) TcpHeader(header);
  in_message_ = true;
  received_ = 0;
  return true;
}

void TcpRecvPort::end_message() {
  in_message_ = false;
  if (is_early_) {
    const uint64_t sequence = early_.header()->sequence;
    early_messages_.emplace(sequence, std::move(early_));
    settle();
  } else {
    ++complete_;
    if (!early_messages_.empty()) settle();
  }
}

// Takes what fills the gap into the ring.
void TcpRecvPort::settle() {
  while (!full() && !early_messages_.empty() && early_messages_.begin()->first == complete_) {
    at(complete_) = std::move(early_messages_.begin()->second);
    early_messages_.erase(early_messages_.begin());
    ++complete_;
  }
}

Status TcpRecvPort::accept(TcpSlot message) {
  const TcpHeader& header = *message.header();
  if (!sound(header) || early_messages_.size() > kMostEver) return refuse();
  const uint64_t sequence = header.sequence;
  if (sequence < complete_ || early_messages_.contains(sequence)) return {};
  // The copy that is just being received comes too late.
  if (in_message_ && incoming().header()->sequence == sequence) drop_rest();
  early_messages_.emplace(sequence, std::move(message));
  settle();
  return {};
}

TcpReceipt TcpRecvPort::receipt() const {
  TcpReceipt receipt;
  receipt.rail = static_cast<uint16_t>(route_.rail);
  receipt.channel = static_cast<uint16_t>(route_.channel);
  receipt.complete = complete_;
  receipt.released = released_;
  receipt.read = bytes_moved_;
  for (const auto& [sequence, message] : early_messages_) {
    if (sequence > complete_ && sequence - complete_ <= 64) receipt.early |= uint64_t{1} << (sequence - complete_ - 1);
  }
  return receipt;
}

void TcpRecvPort::drop_rest() {
  discard_ = missing();
  in_message_ = false;
}

void TcpRecvPort::ended(int error) {
  eof_ = true;
  if (error == 0 && !in_message_ && discard_ == 0 && staged_from_ == staged_to_) return;
  const std::string what = "lost the connection from " + route_.describe();
  end_status_ = Status::remote(
      what + (error == 0 ? ": it closed in the middle of a message" : std::string(": ") + std::strerror(error)));
  in_message_ = false;
  if (!another_way_) status_ = end_status_;
}

int TcpRecvPort::wait_fd(uint64_t now) const {
  if (!may_read()) return -1;
  if (const TokenBucket* const limiter = bucket(); limiter != nullptr && !limiter->open(now)) return -1;
  return socket_.fd();
}

uint64_t TcpRecvPort::wait_until_ns() const {
  if (const TokenBucket* const limiter = bucket(); limiter != nullptr && may_read()) return limiter->due();
  return 0;
}

}  // namespace theseus
