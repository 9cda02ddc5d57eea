// What a message looks like on a TCP connection: this header, then its bytes. Little-endian, as all our wire formats.
//
// A spare connection (Hello with kSpareChannel) carries messages of other connections, which its headers name, and
// questions; what comes back over it are receipts.
#pragma once

#include <cstdint>

#include "transport/port.h"

namespace theseus {

inline constexpr int kSpareChannel = -1;

struct TcpHeader {
  static constexpr uint32_t kMagic = 0x4d534854;         // "THSM"
  enum Kind : uint32_t { kMessage = 0, kQuestion = 1 };  // a question asks for a receipt, and has no bytes

  uint32_t magic = kMagic;
  uint32_t bytes = 0;
  uint64_t sequence = 0;  // 0, 1, 2... on each connection
  uint32_t signature_hash = 0;
  uint16_t rail = 0;  // of the connection that the message belongs to; on spare connections only
  uint16_t channel = 0;
  RequestSignature signature;
  uint32_t kind = kMessage;
  uint32_t reserved = 0;
  uint64_t more_reserved = 0;
};
static_assert(sizeof(RequestSignature) == 24);
static_assert(sizeof(TcpHeader) == 64);

// How far the connection (rail, channel) has come at its receiver.
struct TcpReceipt {
  static constexpr uint32_t kMagic = 0x52534854;  // "THSR"

  uint32_t magic = kMagic;
  uint16_t rail = 0;
  uint16_t channel = 0;
  uint64_t complete = 0;  // every message below is there
  uint64_t released = 0;  // and these its user is done with
  uint64_t early = 0;     // bit i: message complete + 1 + i is there, too
  uint64_t read = 0;      // bytes, of the connection itself

  bool operator==(const TcpReceipt&) const = default;
};
static_assert(sizeof(TcpReceipt) == 40);

}  // namespace theseus
