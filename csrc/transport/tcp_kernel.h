// What the kernel knows about a TCP connection that we send on.
#pragma once

#include <cstdint>
#include <optional>

namespace theseus {

// Bytes handed to the kernel that the peer's kernel has not acknowledged; nothing where the descriptor is dead.
std::optional<uint64_t> unacknowledged_bytes(int fd);
// For how long the peer's receive buffer was full since the connection began, in nanoseconds (of a few milliseconds'
// resolution); 0 where the kernel does not say.
uint64_t held_up_by_receiver_ns(int fd);
// Seconds since the peer's machine has last acknowledged anything, while we repeat what it should; else 0.
double silent_seconds(int fd);

}  // namespace theseus
