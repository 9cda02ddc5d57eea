// Connections through the shared segment of a host.
//
// Memory order: the sender writes payload and head of a MessageLine, then `sequence` with release; the receiver reads
// `sequence` with acquire, so that it sees all that was written before. The receiver reads a slot, then publishes
// `released` with release; the sender reads it with acquire before it writes the slot again.
#pragma once

#include <cstring>
#include <vector>

#include "transport/doorbell.h"
#include "transport/port.h"
#include "transport/segment.h"

namespace theseus {

// What a sender needs to know to pass memory by reference to one peer.
struct ReferencePolicy {
  bool same_process = false;   // plain pointers
  bool shared_memory = false;  // buffers from mem_alloc
  bool cross_memory = false;   // process_vm_readv is permitted
  // Between these cross_memory pays: below, a system call costs more than a copy; above, two cores copying through
  // the slots move more than one core copying alone.
  size_t smallest_remote = 0;
  size_t largest_remote = 0;
};

class ShmSendPort final : public SendPort {
 public:
  ShmSendPort(Segment& segment, int channel, int src, int dst, const ReferencePolicy& policy);

  size_t slot_bytes() const override { return slot_bytes_; }
  int slots() const override { return static_cast<int>(slots_); }
  void set_tag(const SignatureTag& tag) override { tag_ = &tag; }

  void* acquire(size_t bytes) override {
    if (posted_ - released_seen_ >= kLines && !credit()) return nullptr;
    return bytes <= kInlineBytes ? control_.lines[position_].payload : acquire_place(bytes);
  }
  void commit(size_t bytes) override {
    if (bytes <= kInlineBytes) return publish(bytes, MessageKind::Copied);
    commit_place(bytes);
  }

  bool can_reference(const void* data, size_t bytes, size_t total) const override;
  bool post_reference(const void* data, size_t bytes) override;

  bool can_share(const SendPort& other, uint64_t ticket) const override {
    return other.shared_memory() == &segment_ && static_cast<const ShmSendPort&>(other).slot_of(ticket) < slots_;
  }
  bool share(SendPort& other, uint64_t ticket, size_t bytes) override;
  // Further channels have a mapping of their own, which a reference cannot point into.
  const void* shared_memory() const override { return channel_ < kShmChannels ? &segment_ : nullptr; }

  uint64_t posted() const override { return posted_; }
  uint64_t released() override {
    released_seen_ = control_.released.load(std::memory_order_acquire);
    return released_seen_;
  }
  Status progress() override { return {}; }

 private:
  // A message of another port that lies in a slot of this one.
  struct Pin {
    ShmSendPort* port;
    uint64_t ticket;
  };

  bool credit() { return posted_ - released() < kLines; }
  // Of messages longer than a line.
  void* acquire_place(size_t bytes);
  void commit_place(size_t bytes);
  bool free_since(uint64_t ticket) { return released_seen_ >= ticket || released() >= ticket; }
  // Makes the start of the next cell or slot the sender's while there is time; the next message is likely as long.
  void claim(const uint8_t* place, size_t bytes);
  // The slot that holds message number `ticket`; slots_ where none does any more.
  uint32_t slot_of(uint64_t ticket) const;
  bool unpinned(uint32_t slot);
  void publish(size_t bytes, MessageKind kind);

  Segment& segment_;
  int channel_;
  ConnectionControl& control_;
  RankPage& receiver_;
  uint8_t* slots_base_;
  uint8_t* cells_;
  const SignatureTag* tag_ = nullptr;
  uint64_t posted_ = 0;
  uint64_t released_seen_ = 0;
  uint32_t position_ = 0;  // posted_ modulo kLines
  uint32_t slot_ = 0;      // the next to be filled
  uint32_t cell_ = 0;      // likewise
  uint32_t slots_;
  uint32_t slot_bytes_;
  size_t slot_stride_;
  uint64_t tickets_[kMaxSlots] = {};  // by slot: number of the last message in it
  uint64_t cell_tickets_[kCells] = {};
  uint32_t recorded_[kLines] = {};  // by line: base hash of the signature recorded there
  uint32_t pinned_ = 0;             // bit per slot that has pins
  std::vector<Pin> pins_[kMaxSlots];
  ReferencePolicy policy_;
};

class ShmRecvPort final : public RecvPort {
 public:
  ShmRecvPort(Segment& segment, int channel, int src, int dst);

  const Message* peek() override {
    if (peeked_) return &message_;
    MessageLine& line = control_.lines[position_];
    if (line.sequence.load(std::memory_order_acquire) != static_cast<uint32_t>(received_ + 1)) {
      if (published_ != received_) publish();
      return nullptr;
    }
    return open(line);
  }
  Status fetch(void* dst, size_t offset, size_t bytes) override;
  // The count of released messages is published for several at once, since the sender may be polling it: at the latest
  // when half of the lines, cells or slots wait, and as soon as this end has nothing else to do (peek() in vain). A
  // reference is given back at once: its sender's buffer hangs on it.
  void release() override {
    peeked_ = false;
    ++received_;
    if (++position_ == kLines) position_ = 0;
    unpublished_ += message_.bytes <= kInlineBytes ? 1 : message_.bytes <= kCellBytes ? kLines / kCells : slot_weight_;
    if (unpublished_ >= kLines / 2 || message_.kind != MessageKind::Copied) publish();
  }
  RequestSignature peer_signature() override;
  Status progress() override { return {}; }

 private:
  const Message* open(const MessageLine& line);
  const uint8_t* place_of(const MessageLine& line) const;
  void publish() {
    published_ = received_;
    unpublished_ = 0;
    control_.released.store(received_, std::memory_order_release);
    ring(sender_);
  }

  Segment& segment_;
  ConnectionControl& control_;
  RankPage& sender_;
  uint8_t* slots_base_;
  uint8_t* cells_;
  Message message_;
  Reference reference_{};
  uint64_t received_ = 0;
  uint64_t published_ = 0;
  uint32_t position_ = 0;     // received_ modulo kLines
  uint32_t unpublished_ = 0;  // in lines' worth
  uint32_t slots_;
  uint32_t slot_bytes_;
  size_t slot_stride_;
  uint32_t slot_weight_;  // lines' worth of a slot
  bool peeked_ = false;
};

}  // namespace theseus
