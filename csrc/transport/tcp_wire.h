// What a message looks like on a TCP connection: this header, then its bytes. Little-endian, as all our wire formats.
#pragma once

#include <cstdint>

#include "transport/port.h"

namespace theseus {

struct TcpHeader {
  static constexpr uint32_t kMagic = 0x4d534854;  // "THSM"

  uint32_t magic = kMagic;
  uint32_t bytes = 0;
  uint64_t sequence = 0;  // 0, 1, 2... on each connection
  uint32_t signature_hash = 0;
  uint32_t reserved = 0;
  RequestSignature signature;
  uint64_t more_reserved[2] = {};
};
static_assert(sizeof(RequestSignature) == 24);
static_assert(sizeof(TcpHeader) == 64);

}  // namespace theseus
