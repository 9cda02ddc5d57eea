// The two ends of a directed connection, as executors see them: a FIFO of messages, each at most slot_bytes() long.
//
// A sender fills the memory that acquire() returns and commits it; at least slots() messages fit before the receiver
// has taken any. A receiver peeks at the oldest message and releases it. Nothing here blocks: null means "not yet",
// and failed() says whether it is worth waiting. A port is used by one thread at a time (the communicator's lock).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/types.h"

namespace theseus {

// In RequestSignature::plan: a plan that was loaded, and is known by its number.
inline constexpr uint16_t kLoadedPlan = 0x8000;
// Together with kLoadedPlan: a schedule of the job's context; the rest is low bits of its id.
inline constexpr uint16_t kScheduledPlan = 0x4000;

// What a request is, as far as both ends of a connection must agree. Sent along so that a mismatch can be named.
struct RequestSignature {
  uint64_t count = 0;
  uint32_t request = 0;  // id of the request on its communicator; for send/recv: 0
  int32_t root = -1;
  Collective collective = Collective::AllReduce;
  DataType type = DataType::Int8;
  RedOp op = RedOp::Sum;
  uint8_t reserved = 0;
  uint16_t plan = 0;  // kLoadedPlan + its number, or low bits of the digest of a plan that the policy chose
  int16_t rank = -1;  // who announces this; for messages, not compared

  bool operator==(const RequestSignature&) const = default;
};

// A signature with its digests, made once a request. `base` covers everything but the request id and changes rarely;
// `hash` adds the id so that it can be recovered: hash = base + request * kRequestFactor.
struct SignatureTag {
  RequestSignature signature;
  uint32_t base = 0;
  uint32_t hash = 0;
};
inline constexpr uint32_t kRequestFactor = 0x9e3779b1;  // odd
inline constexpr uint32_t kRequestFactorInverse =
    0x0e8b2f51;                                         // of kRequestFactor modulo 2^32 (checked in signature.cc)
uint32_t base_hash(const RequestSignature& signature);  // ignores `request` and `rank`
inline uint32_t request_hash(uint32_t base, uint32_t request) { return base + request * kRequestFactor; }
std::string describe(const RequestSignature& signature);  // "AllReduce of 10 float32, sum, request 3"
// Why a request cannot go on: names both ranks, and what each runs.
Status mismatch(const RequestSignature& own, const RequestSignature& other);

enum class MessageKind : uint8_t {
  Copied,      // `data` is valid until release()
  Referenced,  // `data` points into the sender's buffer (same process, or shared memory); valid until release()
  Remote,      // sender's private memory: fetch with RecvPort::fetch(); valid until release()
};

struct Message {
  const void* data = nullptr;
  size_t bytes = 0;
  uint32_t signature_hash = 0;
  MessageKind kind = MessageKind::Copied;
};

inline constexpr size_t kNeverFetch = SIZE_MAX;
inline constexpr size_t kFetchIfCrowded = SIZE_MAX - 1;  // only with more ranks than cores
// A message above this that comes in pieces, or goes one way, is quicker through the slots, where both ends copy.
inline constexpr size_t kLargestPiecewiseFetch = 2 << 20;

class SendPort {
 public:
  virtual ~SendPort() = default;
  virtual size_t slot_bytes() const = 0;
  virtual int slots() const = 0;
  // Announces the request whose messages follow. Cheap when nothing changed.
  virtual void set_tag(const SignatureTag& tag) = 0;
  // Memory for one message of up to `bytes` (<= slot_bytes()), or null while all slots are taken.
  virtual void* acquire(size_t bytes) = 0;
  // Publishes what acquire() returned.
  virtual void commit(size_t bytes) = 0;
  // Passes `data` by reference, where can_reference(...): any size. False: no slot free, try again.
  // `total`: bytes of the request that this message is part of; what pays depends on it. kNeverFetch: only where the
  // receiver can read the memory as its own.
  virtual bool can_reference(const void* data, size_t bytes, size_t total) const = 0;
  virtual bool post_reference(const void* data, size_t bytes) = 0;
  // Publishes again what `other`, a port of the same rank, has in one of its slots (message number `ticket`, the value
  // of its posted() after the commit), so that one copy serves several receivers. can_share: the slot still holds it.
  // share: false where no slot is free, try again. `other` keeps its slot until this receiver has released it as well.
  virtual bool can_share(const SendPort& other, uint64_t ticket) const { return (void)other, (void)ticket, false; }
  virtual bool share(SendPort& other, uint64_t ticket, size_t bytes) {
    return (void)other, (void)ticket, (void)bytes, false;
  }
  // The memory that this port's slots lie in, if peers have it mapped too.
  virtual const void* shared_memory() const { return nullptr; }
  // Messages committed or posted so far, and those the receiver has released: a reference is done when
  // released() >= the value posted() had right after it was posted.
  virtual uint64_t posted() const = 0;
  virtual uint64_t released() = 0;
  // Moves bytes that wait (TCP); a no-op for shared memory. Ok, or why this connection is dead.
  virtual Status progress() = 0;
};

class RecvPort {
 public:
  virtual ~RecvPort() = default;
  // The oldest unreleased message, or null while there is none.
  virtual const Message* peek() = 0;
  // MessageKind::Remote: copies [offset, offset + bytes) of the sender's buffer to dst.
  virtual Status fetch(void* dst, size_t offset, size_t bytes) = 0;
  // The sender may see it a little later, but no later than when peek() finds nothing, or half of the slots wait.
  virtual void release() = 0;
  // The signature that the peeked message was sent under (slow path, to name a mismatch).
  virtual RequestSignature peer_signature() = 0;
  virtual Status progress() = 0;
};

}  // namespace theseus
