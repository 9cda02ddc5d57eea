// The shared segment of one communicator on one host: everything that its local ranks exchange through memory.
//
// A memfd, created by the lowest local rank and passed to the others over a Unix socket, so that nothing is left
// behind whatever dies. Sparse: pages cost memory only once they are used. Ranks that are threads of one process share
// one mapping of it: less address space, and both ends of a connection are seen to touch the same words (by
// ThreadSanitizer, which goes by address).
//
//   page 0        SegmentHead
//   rank pages    RankPage[local ranks]
//   controls      ConnectionControl[channel][src][dst]
//   data          of [channel][src][dst]: slots, each slot_stride long, then cells
//   more channels each with its controls and data; see open_channel()
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "transport/port.h"

namespace theseus {

inline constexpr int kMaxSlots = 8;
// Messages that a connection holds, whatever their size. Those too long for a line lie in a cell, if they fit there,
// else in a slot. A sender of small messages may so run far ahead, and with more ranks than cores ranks change less
// often.
inline constexpr uint32_t kLines = 64;
inline constexpr uint32_t kCells = 32;
inline constexpr size_t kCellBytes = 2048;
inline constexpr int kShmChannels = 2;        // 0: collectives, 1: point-to-point; any more are opened when needed
inline constexpr int kMostShmChannels = 130;  // each takes address space for all pairs of ranks
inline constexpr size_t kInlineBytes = 48;

struct SegmentGeometry {
  uint32_t ranks = 0;  // local ranks
  uint32_t slots = kMaxSlots;
  uint32_t slot_bytes = 128 << 10;
};

// Where a rank's buffers of one request lie, for peers that can map them (executor/shared_execution.h). Two take turns:
// nobody posts for request r + 2 before all have read what was posted for r.
struct alignas(64) BufferBoard {
  uint64_t send_allocation;  // 0: private memory
  uint64_t send_offset;
  uint64_t recv_allocation;
  uint64_t recv_offset;
  uint64_t send_address;  // for ranks of the same process
  uint64_t recv_address;
  uint32_t signature;            // hash of the request
  std::atomic<uint32_t> posted;  // number of the exchange, counted from 1; written last
  alignas(
      64) std::atomic<uint32_t> mapped;  // 2 * exchange + 1 where all peers' buffers could be mapped, else 2 * exchange
  std::atomic<uint32_t> finished;        // number of the exchange whose request this rank has done its part of
  RequestSignature announced;            // what `signature` is the hash of, but for the request; for messages
};

// Written by its rank, read by the others.
struct alignas(128) RankPage {
  std::atomic<uint32_t> doorbell;  // futex word; bumped by whoever wakes the rank
  std::atomic<uint32_t> sleeping;  // 1 while the rank is, or is about to be, asleep on the doorbell
  std::atomic<int32_t> pid;
  std::atomic<uint32_t> ready;
  BufferBoard boards[2];
};

// One message on its way, one cache line: the payload lies beside its flag while it is small.
struct alignas(64) MessageLine {
  uint8_t payload[kInlineBytes];  // the message itself, or a Reference
  uint32_t signature;
  uint32_t bytes;
  uint16_t kind;
  uint16_t place;                  // its cell or slot, if it is Copied and longer than a payload
  std::atomic<uint32_t> sequence;  // low bits of the message's number, counted from 1; written last
};
static_assert(sizeof(MessageLine) == 64);

// What a MessageLine's payload holds where the message is passed by reference.
struct Reference {
  uint64_t address;  // in the sender's address space
  uint64_t bytes;
  uint64_t allocation;  // id of the shared allocation, 0 if private memory
  uint64_t offset;      // in that allocation
};
static_assert(sizeof(Reference) <= kInlineBytes);
// Reference::allocation of memory in the segment itself: another connection's slot, at `offset` from the base.
inline constexpr uint64_t kSegmentAllocation = ~uint64_t{0};

// A directed connection. The receiver owns `released`, the sender all else; they lie on different lines.
struct ConnectionControl {
  alignas(64) std::atomic<uint64_t> released;
  MessageLine lines[kLines];
  alignas(64) RequestSignature signatures[kLines];  // by line; rewritten only where it changed
};

class Segment {
 public:
  // Creates the memory; `needed` bytes are virtual until used. Error: what is missing (descriptors, address space).
  static Result<std::unique_ptr<Segment>> create(const SegmentGeometry& geometry);
  // Maps what create() made elsewhere; checks the head before anything else is read. Takes the descriptor.
  static Result<std::unique_ptr<Segment>> attach(int fd, const SegmentGeometry& expected);
  ~Segment();

  int fd() const { return fd_; }
  const SegmentGeometry& geometry() const { return geometry_; }
  RankPage& rank_page(int local_rank) const;
  // Makes a channel from kShmChannels on ready for control() and slot(): several connections between one pair of ranks,
  // for plans that want them. Any rank may be first. Error: what is missing.
  Status open_channel(int channel);
  ConnectionControl& control(int channel, int src, int dst) const;
  uint8_t* slot(int channel, int src, int dst, int index) const;
  uint8_t* cell(int channel, int src, int dst, int index) const {
    return slot(channel, src, dst, static_cast<int>(geometry_.slots)) + index * kCellBytes;
  }
  // [offset, offset + bytes) of the segment, or null where that is not inside.
  const uint8_t* at(uint64_t offset, uint64_t bytes) const {
    return offset <= total_ && bytes <= total_ - offset ? base_ + offset : nullptr;
  }
  uint64_t offset_of(const uint8_t* address) const { return static_cast<uint64_t>(address - base_); }
  // The head's word of shared failure: non-zero once a local rank has seen the communicator fail.
  std::atomic<uint32_t>& failed() const;

  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

 private:
  class Mapping;
  Segment(int fd, std::shared_ptr<Mapping> mapping, const SegmentGeometry& geometry);
  int fd_;
  std::shared_ptr<Mapping> mapping_;
  uint8_t* base_;
  uint64_t total_;
  SegmentGeometry geometry_;
  std::vector<std::shared_ptr<Mapping>> more_;  // by channel, from kShmChannels on; null: not open
};

}  // namespace theseus
