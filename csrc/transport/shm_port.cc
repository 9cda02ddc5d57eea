#include "transport/shm_port.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

#include "transport/shared_memory.h"

namespace theseus {
namespace {

// How far ahead of its message a line is made the sender's, so that the message's stores need not wait for it.
constexpr uint32_t kLinesAhead = 4;

// As much of a cell or slot as is on its way before the next message is due; more would only be waited for.
constexpr size_t kClaimBytes = 16 << 10;

// __builtin_prefetch(.., 1) fetches a shared copy unless the compiler may assume a newer processor; older ones take
// this instruction for a no-op.
inline void prefetch_to_write(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

size_t stride_of(Segment& segment) { return static_cast<size_t>(segment.slot(0, 0, 0, 1) - segment.slot(0, 0, 0, 0)); }

}  // namespace

ShmSendPort::ShmSendPort(Segment& segment, int channel, int src, int dst, const ReferencePolicy& policy)
    : segment_(segment),
      channel_(channel),
      control_(segment.control(channel, src, dst)),
      receiver_(segment.rank_page(dst)),
      slots_base_(segment.slot(channel, src, dst, 0)),
      cells_(segment.cell(channel, src, dst, 0)),
      slots_(segment.geometry().slots),
      slot_bytes_(segment.geometry().slot_bytes),
      slot_stride_(stride_of(segment)),
      policy_(policy) {}

void ShmSendPort::publish(size_t bytes, MessageKind kind) {
  MessageLine& line = control_.lines[position_];
  if (recorded_[position_] != tag_->base) [[unlikely]] {
    control_.signatures[position_] = tag_->signature;
    recorded_[position_] = tag_->base;
  }
  line.signature = tag_->hash;
  line.bytes = static_cast<uint32_t>(bytes);
  line.kind = static_cast<uint16_t>(kind);
  ++posted_;
  line.sequence.store(static_cast<uint32_t>(posted_), std::memory_order_release);
  if (++position_ == kLines) position_ = 0;
  prefetch_to_write(&control_.lines[(position_ + kLinesAhead) % kLines]);
  ring(receiver_);
}

// A place is free once its last message has been released, of a slot by all who read it.
void* ShmSendPort::acquire_place(size_t bytes) {
  if (bytes <= kCellBytes) return free_since(cell_tickets_[cell_]) ? cells_ + cell_ * kCellBytes : nullptr;
  if (!free_since(tickets_[slot_]) || (pinned_ != 0 && !unpinned(slot_))) return nullptr;
  return slots_base_ + slot_ * slot_stride_;
}

void ShmSendPort::commit_place(size_t bytes) {
  MessageLine& line = control_.lines[position_];
  if (bytes <= kCellBytes) {
    line.place = static_cast<uint16_t>(cell_);
    cell_tickets_[cell_] = posted_ + 1;
    cell_ = (cell_ + 1) % kCells;
    publish(bytes, MessageKind::Copied);
    claim(cells_ + cell_ * kCellBytes, bytes);
  } else {
    line.place = static_cast<uint16_t>(slot_);
    tickets_[slot_] = posted_ + 1;
    if (++slot_ == slots_) slot_ = 0;
    publish(bytes, MessageKind::Copied);
    claim(slots_base_ + slot_ * slot_stride_, bytes);
  }
}

void ShmSendPort::claim(const uint8_t* place, size_t bytes) {
  for (size_t at = 0; at < std::min(bytes, kClaimBytes); at += 64) prefetch_to_write(place + at);
}

bool ShmSendPort::can_reference(const void* data, size_t bytes, size_t total) const {
  if (policy_.same_process) return true;
  if (policy_.shared_memory && SharedMemory::find(data, bytes).id != 0) return true;
  return policy_.cross_memory && bytes >= policy_.smallest_remote && total <= policy_.largest_remote;
}

bool ShmSendPort::post_reference(const void* data, size_t bytes) {
  if (posted_ - released_seen_ >= kLines && !credit()) return false;
  Reference reference{reinterpret_cast<uint64_t>(data), bytes, 0, 0};
  MessageKind kind = MessageKind::Referenced;
  if (!policy_.same_process) {
    const SharedMemory::Span span = policy_.shared_memory ? SharedMemory::find(data, bytes) : SharedMemory::Span{};
    reference.allocation = span.id;
    reference.offset = span.offset;
    if (span.id == 0) kind = MessageKind::Remote;
  }
  std::memcpy(control_.lines[position_].payload, &reference, sizeof reference);
  publish(0, kind);
  return true;
}

bool ShmSendPort::share(SendPort& other, uint64_t ticket, size_t bytes) {
  if (posted_ - released_seen_ >= kLines && !credit()) return false;
  auto& owner = static_cast<ShmSendPort&>(other);  // can_share() held, so it lies in the same segment
  const uint32_t slot = owner.slot_of(ticket);
  const uint8_t* data = owner.slots_base_ + slot * slot_stride_;
  const Reference reference{0, bytes, kSegmentAllocation, segment_.offset_of(data)};
  std::memcpy(control_.lines[position_].payload, &reference, sizeof reference);
  publish(0, MessageKind::Referenced);
  owner.pins_[slot].push_back({this, posted_});
  owner.pinned_ |= 1u << slot;
  return true;
}

uint32_t ShmSendPort::slot_of(uint64_t ticket) const {
  uint32_t slot = 0;
  while (slot < slots_ && tickets_[slot] != ticket) ++slot;
  return slot;
}

// Whether all other ports' messages in `slot` have been released; forgets those that have.
bool ShmSendPort::unpinned(uint32_t slot) {
  std::vector<Pin>& pins = pins_[slot];
  while (!pins.empty()) {
    if (pins.back().port->released() < pins.back().ticket) return false;
    pins.pop_back();
  }
  pinned_ &= ~(1u << slot);
  return true;
}

ShmRecvPort::ShmRecvPort(Segment& segment, int channel, int src, int dst)
    : segment_(segment),
      control_(segment.control(channel, src, dst)),
      sender_(segment.rank_page(src)),
      slots_base_(segment.slot(channel, src, dst, 0)),
      cells_(segment.cell(channel, src, dst, 0)),
      slots_(segment.geometry().slots),
      slot_bytes_(segment.geometry().slot_bytes),
      slot_stride_(stride_of(segment)),
      slot_weight_(kLines / 2 / std::max(1u, slots_ / 2)) {}

// Wherever a line may point, it is inside.
const uint8_t* ShmRecvPort::place_of(const MessageLine& line) const {
  if (message_.bytes <= kInlineBytes) return line.payload;
  if (message_.bytes <= kCellBytes) return cells_ + std::min<uint32_t>(line.place, kCells - 1) * kCellBytes;
  return slots_base_ + std::min<uint32_t>(line.place, slots_ - 1) * slot_stride_;
}

const Message* ShmRecvPort::open(const MessageLine& line) {
  message_.signature_hash = line.signature;
  message_.kind = static_cast<MessageKind>(line.kind);
  if (message_.kind == MessageKind::Copied) [[likely]] {
    message_.bytes = std::min(line.bytes, slot_bytes_);
    message_.data = place_of(line);
  } else {
    std::memcpy(&reference_, line.payload, sizeof reference_);
    message_.bytes = reference_.bytes;
    message_.data = nullptr;
    if (reference_.allocation == kSegmentAllocation) {
      message_.data = segment_.at(reference_.offset, reference_.bytes);
    } else if (message_.kind == MessageKind::Referenced) {
      message_.data = reference_.allocation == 0
                          ? reinterpret_cast<const void*>(reference_.address)
                          : SharedMemory::map_peer(reference_.allocation, reference_.offset, reference_.bytes);
      if (message_.data == nullptr) message_.kind = MessageKind::Remote;  // could not be mapped: read it instead
    }
  }
  peeked_ = true;
  return &message_;
}

Status ShmRecvPort::fetch(void* dst, size_t offset, size_t bytes) {
  const pid_t pid = sender_.pid.load(std::memory_order_relaxed);
  while (bytes > 0) {
    const iovec local{dst, bytes};
    const iovec remote{reinterpret_cast<void*>(reference_.address + offset), bytes};
    const ssize_t got = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == ESRCH) {
      return Status::remote("process " + std::to_string(pid) + " ended while its memory was being read");
    }
    if (got <= 0) {
      return Status::from_errno(
          "cannot read the memory of process " + std::to_string(pid) + " (THESEUS_CMA=0 avoids this)",
          got < 0 ? errno : ESRCH);
    }
    dst = static_cast<uint8_t*>(dst) + got;
    offset += static_cast<size_t>(got);
    bytes -= static_cast<size_t>(got);
  }
  return {};
}

RequestSignature ShmRecvPort::peer_signature() {
  RequestSignature signature = control_.signatures[position_];
  signature.request = (control_.lines[position_].signature - base_hash(signature)) * kRequestFactorInverse;
  return signature;
}

}  // namespace theseus
