// What the kernel knows about a TCP connection that we send on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace theseus {

// Bytes handed to the kernel that the peer's kernel has not acknowledged; nothing where the descriptor is dead.
std::optional<uint64_t> unacknowledged_bytes(int fd);
// Whether the peer has no room: all that it was sent has arrived, and more waits. False where the peer no longer
// answers.
bool window_is_closed(int fd);
// Seconds since the peer's machine has last acknowledged anything, while we repeat what it should; else 0.
double silent_seconds(int fd);

// Gives the connection the congestion control `name`; empty: cubic, else reno, else the system's, since bbr keeps slow
// rails from their share. A name that the kernel does not have, or not permit, changes nothing.
void choose_congestion_control(int fd, const std::string& name);
// How much the socket may hold of what we send. Never less than a few segments: below that TCP waits for delayed
// acknowledgements.
void set_send_buffer(int fd, int bytes);

}  // namespace theseus
