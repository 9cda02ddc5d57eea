// Vectors of one instruction set's width, and how they meet memory. A file that includes this defines before its first
// include
//   THESEUS_TARGET        the function attribute that enables the instruction set (may be empty)
//   THESEUS_VECTOR_BYTES  the width of its registers: 16, 32 or 64
// Everything sits in an unnamed namespace, so that the linker cannot hand one set's code to another.
#pragma once

#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "device/dtypes.h"

// Vectors wider than the default registers are passed only between functions that are always inlined.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace theseus {
namespace {

template <class T, int kBytes>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kBytes)));
};
template <class T, int kBytes = THESEUS_VECTOR_BYTES>
using Vector = typename VectorOf<T, kBytes>::Type;

struct VectorLanes {
  using Float = Vector<float>;
  using Bits = Vector<uint32_t>;
  using Signed = Vector<int32_t>;
  static constexpr int kCount = THESEUS_VECTOR_BYTES / 4;
};

// ---- Packs in memory ----

template <class Pack>
THESEUS_LANES_INLINE Pack load(const char* source) {
  Pack pack;
  __builtin_memcpy(&pack, source, sizeof(pack));
  return pack;
}

template <class Pack>
THESEUS_LANES_INLINE void store(char* target, Pack pack) {
  __builtin_memcpy(target, &pack, sizeof(pack));
}

// A pack's last elements, fewer than all of it but at least a byte; lanes past them are zero.

template <class Word>
THESEUS_LANES_INLINE Word read(const char* source) {
  Word word;
  __builtin_memcpy(&word, source, sizeof(word));
  return word;
}

// 1 to 8 bytes, little-endian (more: the first 8). Assembled in a general register: a detour over the stack would
// stall, since the processor cannot forward several small stores to one wide load.
THESEUS_LANES_INLINE uint64_t load_word(const char* source, size_t bytes) {
  if (bytes >= 8) return read<uint64_t>(source);
  if (bytes >= 4) {
    const uint64_t low = read<uint32_t>(source);
    const uint64_t high = read<uint32_t>(source + bytes - 4);
    return low | high << (8 * (bytes - 4));
  }
  uint64_t word = 0;
  for (size_t i = 0; i < bytes; ++i) word |= uint64_t{static_cast<uint8_t>(source[i])} << (8 * i);
  return word;
}

THESEUS_LANES_INLINE void store_word(char* target, uint64_t word, size_t bytes) {
  if (bytes >= 8) {
    __builtin_memcpy(target, &word, 8);
  } else if (bytes >= 4) {
    const uint32_t low = static_cast<uint32_t>(word);
    const uint32_t high = static_cast<uint32_t>(word >> (8 * (bytes - 4)));
    __builtin_memcpy(target, &low, 4);
    __builtin_memcpy(target + bytes - 4, &high, 4);
  } else {
    for (size_t i = 0; i < bytes; ++i) target[i] = static_cast<char>(word >> (8 * i));
  }
}

template <class Pack>
THESEUS_LANES_INLINE Pack load_part(const char* source, size_t bytes) {
  if constexpr (sizeof(Pack) < 8) {
    return bits_as<Pack>(static_cast<uint32_t>(load_word(source, bytes)));
  } else {
    Vector<uint64_t, sizeof(Pack)> words = {};
#if THESEUS_VECTOR_BYTES == 64
    // Masked lanes never fault, whatever lies behind them. A single word is left to the path below: a wide masked load
    // would stall on the caller's narrow store just before.
    if (bytes > 8) {
      const uint64_t mask = (uint64_t{1} << bytes) - 1;
      if constexpr (sizeof(Pack) == 64) return bits_as<Pack>(_mm512_maskz_loadu_epi8(mask, source));
      if constexpr (sizeof(Pack) == 32) return bits_as<Pack>(_mm256_maskz_loadu_epi8(mask & 0xffffffffu, source));
      if constexpr (sizeof(Pack) == 16) return bits_as<Pack>(_mm_maskz_loadu_epi8(mask & 0xffffu, source));
    }
    words[0] = load_word(source, bytes);
#else
#pragma GCC unroll 4
    for (size_t i = 0; i < sizeof(Pack) / 8; ++i) {
      if (8 * i < bytes) words[i] = load_word(source + 8 * i, bytes - 8 * i);
    }
#endif
    return bits_as<Pack>(words);
  }
}

template <class Pack>
THESEUS_LANES_INLINE void store_part(char* target, Pack pack, size_t bytes) {
  if constexpr (sizeof(Pack) < 8) {
    store_word(target, bits_as<uint32_t>(pack), bytes);
  } else {
    const auto words = bits_as<Vector<uint64_t, sizeof(Pack)>>(pack);
#if THESEUS_VECTOR_BYTES == 64
    if (bytes > 8) {
      const uint64_t mask = (uint64_t{1} << bytes) - 1;
      if constexpr (sizeof(Pack) == 64) _mm512_mask_storeu_epi8(target, mask, bits_as<__m512i>(pack));
      if constexpr (sizeof(Pack) == 32) _mm256_mask_storeu_epi8(target, mask & 0xffffffffu, bits_as<__m256i>(pack));
      if constexpr (sizeof(Pack) == 16) _mm_mask_storeu_epi8(target, mask & 0xffffu, bits_as<__m128i>(pack));
    } else {
      store_word(target, words[0], bytes);
    }
#else
#pragma GCC unroll 4
    for (size_t i = 0; i < sizeof(Pack) / 8; ++i) {
      if (8 * i < bytes) store_word(target + 8 * i, words[i], bytes - 8 * i);
    }
#endif
  }
}

// ---- Between packs of narrow codes and registers of 32-bit lanes ----
// The compiler's own conversion of vectors goes lane by lane through general registers for bytes.

using Codes8 = Vector<uint8_t, VectorLanes::kCount>;
using Codes16 = Vector<uint16_t, 2 * VectorLanes::kCount>;

#if THESEUS_VECTOR_BYTES == 64

// GCC 12 warns about its own unmasked intrinsics; with every lane enabled the masked ones are the same instruction.
constexpr __mmask16 kAllLanes = 0xffff;

THESEUS_LANES_INLINE VectorLanes::Bits widen(Codes8 codes) {
  return bits_as<VectorLanes::Bits>(_mm512_maskz_cvtepu8_epi32(kAllLanes, bits_as<__m128i>(codes)));
}
THESEUS_LANES_INLINE VectorLanes::Bits widen(Codes16 codes) {
  return bits_as<VectorLanes::Bits>(_mm512_maskz_cvtepu16_epi32(kAllLanes, bits_as<__m256i>(codes)));
}
THESEUS_LANES_INLINE void narrow(VectorLanes::Bits lanes, Codes8& codes) {
  codes = bits_as<Codes8>(_mm512_maskz_cvtepi32_epi8(kAllLanes, bits_as<__m512i>(lanes)));
}
THESEUS_LANES_INLINE void narrow(VectorLanes::Bits lanes, Codes16& codes) {
  codes = bits_as<Codes16>(_mm512_maskz_cvtepi32_epi16(kAllLanes, bits_as<__m512i>(lanes)));
}

#elif THESEUS_VECTOR_BYTES == 32

THESEUS_LANES_INLINE VectorLanes::Bits widen(Codes8 codes) {
  return bits_as<VectorLanes::Bits>(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bits_as<int64_t>(codes))));
}
THESEUS_LANES_INLINE VectorLanes::Bits widen(Codes16 codes) {
  return bits_as<VectorLanes::Bits>(_mm256_cvtepu16_epi32(bits_as<__m128i>(codes)));
}
THESEUS_LANES_INLINE __m128i narrow_to_16(VectorLanes::Bits lanes) {
  const __m256i all = bits_as<__m256i>(lanes);
  return _mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
}
THESEUS_LANES_INLINE void narrow(VectorLanes::Bits lanes, Codes8& codes) {
  const __m128i words = narrow_to_16(lanes);
  codes = bits_as<Codes8>(_mm_cvtsi128_si64(_mm_packus_epi16(words, words)));
}
THESEUS_LANES_INLINE void narrow(VectorLanes::Bits lanes, Codes16& codes) {
  codes = bits_as<Codes16>(narrow_to_16(lanes));
}

#else

THESEUS_LANES_INLINE VectorLanes::Bits widen(Codes8 codes) {
  const uint32_t word = bits_as<uint32_t>(codes);
  return VectorLanes::Bits{word & 0xffu, word >> 8 & 0xffu, word >> 16 & 0xffu, word >> 24};
}
THESEUS_LANES_INLINE VectorLanes::Bits widen(Codes16 codes) {
  return __builtin_convertvector(codes, VectorLanes::Bits);
}
THESEUS_LANES_INLINE void narrow(VectorLanes::Bits lanes, Codes8& codes) {
  codes = bits_as<Codes8>(lanes[0] | lanes[1] << 8 | lanes[2] << 16 | lanes[3] << 24);
}
THESEUS_LANES_INLINE void narrow(VectorLanes::Bits lanes, Codes16& codes) {
  codes = __builtin_convertvector(lanes, Codes16);
}

#endif

#if THESEUS_VECTOR_BYTES > 16

// ---- Between codes of fp16 and floats ----

// The processor's own fp16 conversion, told to round to nearest even whatever the thread's mode is.
#if THESEUS_VECTOR_BYTES == 64
THESEUS_LANES_INLINE Vector<float> from_half(Codes16 codes) {
  return bits_as<Vector<float>>(_mm512_maskz_cvtph_ps(kAllLanes, bits_as<__m256i>(codes)));
}
THESEUS_LANES_INLINE Codes16 to_half(Vector<float> value) {
  return bits_as<Codes16>(_mm512_maskz_cvtps_ph(kAllLanes, bits_as<__m512>(value), _MM_FROUND_TO_NEAREST_INT));
}
#else
THESEUS_LANES_INLINE Vector<float> from_half(Codes16 codes) {
  return bits_as<Vector<float>>(_mm256_cvtph_ps(bits_as<__m128i>(codes)));
}
THESEUS_LANES_INLINE Codes16 to_half(Vector<float> value) {
  return bits_as<Codes16>(_mm256_cvtps_ph(bits_as<__m256>(value), _MM_FROUND_TO_NEAREST_INT));
}
#endif

// Bytes spread over 16-bit codes.
THESEUS_LANES_INLINE Codes16 spread(Codes8 codes) {
#if THESEUS_VECTOR_BYTES == 64
  return bits_as<Codes16>(_mm256_cvtepu8_epi16(bits_as<__m128i>(codes)));
#else
  return bits_as<Codes16>(_mm_cvtepu8_epi16(_mm_cvtsi64_si128(bits_as<int64_t>(codes))));
#endif
}

#endif

}  // namespace
}  // namespace theseus
