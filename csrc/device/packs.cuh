// Elements in registers, several at a time: packs of 32-bit words, loaded, combined and stored whole.
#pragma once

#include "device/numbers.cuh"

namespace theseus::device {

template <int kWords>
struct Pack {
  U32 word[kWords];
};
using Vector = Pack<kVectorBytes / 4>;
using LinePack = Pack<kLineData / 4>;  // the data of an LL line

// ---- Memory. Of 16-byte vectors the address is a multiple of 16. ----

THESEUS_INLINE Vector load_vector(const U8* at) {
  Vector pack;
#if defined(__CUDACC__)
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(pack.word[0]), "=r"(pack.word[1]), "=r"(pack.word[2]), "=r"(pack.word[3])
               : "l"(__cvta_generic_to_global(at))
               : "memory");
#else
  __builtin_memcpy(&pack, __builtin_assume_aligned(at, kVectorBytes), sizeof pack);
#endif
  return pack;
}

THESEUS_INLINE void store_vector(U8* at, const Vector& pack) {
#if defined(__CUDACC__)
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(at)), "r"(pack.word[0]),
               "r"(pack.word[1]), "r"(pack.word[2]), "r"(pack.word[3])
               : "memory");
#else
  __builtin_memcpy(__builtin_assume_aligned(at, kVectorBytes), &pack, sizeof pack);
#endif
}

template <class Code>
THESEUS_INLINE Code load_element(const U8* at) {
  return *reinterpret_cast<const Code*>(at);
}

template <class Code>
THESEUS_INLINE void store_element(U8* at, Code code) {
  *reinterpret_cast<Code*>(at) = code;
}

// ---- Packs of elements. Little-endian: the first element is in the low bits of the first word. ----

template <class Code, int kWords>
THESEUS_INLINE Code element_of(const Pack<kWords>& pack, int index) {
  if constexpr (sizeof(Code) == 8) {
    return static_cast<U64>(pack.word[2 * index + 1]) << 32 | pack.word[2 * index];
  } else {
    constexpr int kEach = 4 / sizeof(Code);
    return static_cast<Code>(pack.word[index / kEach] >> (index % kEach * 8 * sizeof(Code)));
  }
}

// `pack` starts as zero.
template <int kWords, class Code>
THESEUS_INLINE void put_element(Pack<kWords>& pack, int index, Code code) {
  if constexpr (sizeof(Code) == 8) {
    pack.word[2 * index] = static_cast<U32>(code);
    pack.word[2 * index + 1] = static_cast<U32>(code >> 32);
  } else {
    constexpr int kEach = 4 / sizeof(Code);
    pack.word[index / kEach] |= static_cast<U32>(code) << (index % kEach * 8 * sizeof(Code));
  }
}

template <class Numbers, int kWords>
THESEUS_INLINE Pack<kWords> combine(const Pack<kWords>& left, const Pack<kWords>& right) {
  using Code = typename Numbers::Code;
  Pack<kWords> result = {};
  THESEUS_UNROLL
  for (int i = 0; i < static_cast<int>(4 * kWords / sizeof(Code)); ++i) {
    put_element(result, i, Numbers::combine(element_of<Code>(left, i), element_of<Code>(right, i)));
  }
  return result;
}

template <class Numbers, int kWords>
THESEUS_INLINE Pack<kWords> scale(const Pack<kWords>& pack, U64 factor) {
  using Code = typename Numbers::Code;
  Pack<kWords> result = {};
  THESEUS_UNROLL
  for (int i = 0; i < static_cast<int>(4 * kWords / sizeof(Code)); ++i) {
    put_element(result, i, Numbers::scale(element_of<Code>(pack, i), static_cast<Code>(factor)));
  }
  return result;
}

// One element alone.
template <class Code>
struct Single {
  Code code;
};

template <class Numbers, class Code>
THESEUS_INLINE Single<Code> combine(const Single<Code>& left, const Single<Code>& right) {
  return {Numbers::combine(left.code, right.code)};
}

template <class Numbers, class Code>
THESEUS_INLINE Single<Code> scale(const Single<Code>& element, U64 factor) {
  return {Numbers::scale(element.code, static_cast<Code>(factor))};
}

}  // namespace theseus::device
