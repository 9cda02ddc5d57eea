#include "base/random.h"

#include <sys/random.h>
#include <unistd.h>

#include <cerrno>

#include "base/clock.h"

namespace theseus {

void fill_random(void* data, size_t bytes) {
  auto* out = static_cast<unsigned char*>(data);
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = getrandom(out + done, bytes - done, 0);
    if (got > 0) {
      done += static_cast<size_t>(got);
    } else if (errno != EINTR) {
      break;
    }
  }
  // Only where a seccomp filter forbids getrandom: unique, though not secret.
  uint64_t state = now_ns() ^ (static_cast<uint64_t>(getpid()) << 32);
  for (; done < bytes; ++done) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    out[done] = static_cast<unsigned char>(state >> 56);
  }
}

uint64_t random_u64() {
  uint64_t value = 0;
  fill_random(&value, sizeof value);
  return value;
}

}  // namespace theseus
