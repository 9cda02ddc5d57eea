// Memory that peers on the same host can map: what mem_alloc (ncclMemAlloc, theseus_py.empty) returns.
//
// Every allocation is a memfd with an id that no other allocation of any process of this host has. A receiver that
// meets an id for the first time fetches the descriptor from its owner and keeps the mapping until the owner's
// process is gone from its communicators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/result.h"

namespace theseus {

class SharedMemory {
 public:
  struct Span {
    uint64_t id = 0;  // 0: not (wholly) inside one shared allocation
    uint64_t offset = 0;
  };

  // Page-aligned; never 0 bytes. Error: what is missing.
  static Result<void*> allocate(size_t bytes);
  // InvalidArgument for anything that allocate() did not return.
  static Status free(void* pointer);
  // The allocation of this process that holds [data, data + bytes).
  static Span find(const void* data, size_t bytes);

  // Address here of a peer's allocation (mapped on first use), or null where it cannot be had.
  static const void* map_peer(uint64_t id, uint64_t offset, uint64_t bytes);
  static void* map_peer_writable(uint64_t id, uint64_t offset, uint64_t bytes);
  // How to get a peer's descriptor: returns it, or -1. Set once by the runtime, which owns the Unix sockets.
  using Fetch = std::function<int(uint64_t id)>;
  static void set_fetch(Fetch fetch);
  // High half of the ids of this process's allocations.
  static uint32_t process_tag();
  // A duplicate of the descriptor of this process's allocation `id` for a peer, or -1.
  static int descriptor(uint64_t id);
};

}  // namespace theseus
