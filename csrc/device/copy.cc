#include "device/copy.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace theseus {

#if defined(__x86_64__)

namespace {

constexpr size_t kLine = 64;

// Below this the fence and the trip to memory cost more than the caches do.
constexpr size_t kSmallestStream = 512;

// `dst` is aligned to a line, so each group of four stores fills one write-combining buffer.
void stream_lines(char* dst, const char* src, size_t lines) {
  for (size_t line = 0; line < lines; ++line, dst += kLine, src += kLine) {
    __m128i part[4];
    __builtin_memcpy(part, src, kLine);
    __m128i* const to = reinterpret_cast<__m128i*>(dst);
    _mm_stream_si128(to + 0, part[0]);
    _mm_stream_si128(to + 1, part[1]);
    _mm_stream_si128(to + 2, part[2]);
    _mm_stream_si128(to + 3, part[3]);
  }
}

}  // namespace

void copy_streaming(void* dst, const void* src, size_t bytes) {
  if (bytes < kSmallestStream) {
    copy_bytes(dst, src, bytes);
    return;
  }
  char* const to = static_cast<char*>(dst);
  const char* const from = static_cast<const char*>(src);
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  copy_bytes(to, from, head);
  const size_t lines = (bytes - head) / kLine;
  stream_lines(to + head, from + head, lines);
  const size_t done = head + lines * kLine;
  copy_bytes(to + done, from + done, bytes - done);
  _mm_sfence();
}

#else

void copy_streaming(void* dst, const void* src, size_t bytes) { copy_bytes(dst, src, bytes); }

#endif

}  // namespace theseus
