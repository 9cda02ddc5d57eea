// Copies between host buffers that do not overlap (dst may equal src).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace theseus {

namespace copy_detail {

// `bytes` between sizeof(Word) and twice that: two moves, which overlap unless it is twice. Both loads come first.
template <class Word>
inline __attribute__((always_inline)) void copy_ends(char* dst, const char* src, size_t bytes) {
  Word head, tail;
  __builtin_memcpy(&head, src, sizeof(Word));
  __builtin_memcpy(&tail, src + bytes - sizeof(Word), sizeof(Word));
  __builtin_memcpy(dst, &head, sizeof(Word));
  __builtin_memcpy(dst + bytes - sizeof(Word), &tail, sizeof(Word));
}

struct Word16 {
  uint64_t half[2];
};
struct Word32 {
  uint64_t quarter[4];
};

}  // namespace copy_detail

// memcpy that costs a few instructions up to 64 bytes, where a call would cost more than the copy.
inline __attribute__((always_inline)) void copy_bytes(void* dst, const void* src, size_t bytes) {
  char* const to = static_cast<char*>(dst);
  const char* const from = static_cast<const char*>(src);
  if (bytes > 64) {
    std::memcpy(dst, src, bytes);
  } else if (bytes >= 32) {
    copy_detail::copy_ends<copy_detail::Word32>(to, from, bytes);
  } else if (bytes >= 16) {
    copy_detail::copy_ends<copy_detail::Word16>(to, from, bytes);
  } else if (bytes >= 8) {
    copy_detail::copy_ends<uint64_t>(to, from, bytes);
  } else if (bytes >= 4) {
    copy_detail::copy_ends<uint32_t>(to, from, bytes);
  } else if (bytes > 0) {
    const char first = from[0], middle = from[bytes / 2], last = from[bytes - 1];
    to[0] = first;
    to[bytes / 2] = middle;
    to[bytes - 1] = last;
  }
}

// A copy that goes around the caches, for data that this core does not read again soon: the destination is not read
// first and nothing else is evicted. On return the data is ordered before every later store. Any alignment.
void copy_streaming(void* dst, const void* src, size_t bytes);

}  // namespace theseus
