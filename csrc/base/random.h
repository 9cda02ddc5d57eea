// Unpredictable bytes from the kernel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace theseus {

// Fills `bytes` bytes at `data`. Cannot fail: where getrandom is missing, clock and process id are mixed instead.
void fill_random(void* data, size_t bytes);
uint64_t random_u64();

}  // namespace theseus
