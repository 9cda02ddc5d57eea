// Memory to registers and back, by all threads of a TB.
//
// Threads go through memory together, and the last of them find nothing left to do. Beyond the end a store does
// nothing, and a load brings what lies at the cursor's first place instead, which whoever has a cursor may read: no
// branch, so that the loads behind need not wait, and no predicate, under which old values would take up registers for
// ever.
#pragma once

#include "device/block.cuh"

namespace theseus::device {

template <int kWords>
struct Pack {
  U32 word[kWords];
};
using Vector = Pack<kVectorBytes / 4>;
using LinePack = Pack<kLineData / 4>;  // the data of an LL line

// Where the next access goes. Each one moves on by `stride` bytes.
struct Cursor {
  U64 at;
  U64 first;
  U64 end;
  U64 stride;
};

#if defined(__CUDACC__)

THESEUS_INLINE Cursor cursor_at(const U8* at, const U8* end, U32 stride) {
  const U64 first = __cvta_generic_to_global(at);
  return {first, first, __cvta_generic_to_global(end), stride};
}

// 16 bytes; the address is a multiple of that.
THESEUS_INLINE void load_vector(Vector& pack, Cursor& cursor) {
  asm volatile(
      "{ .reg .pred in; .reg .u64 a; setp.lt.u64 in, %4, %5; selp.b64 a, %4, %7, in; "
      "ld.global.v4.u32 {%0, %1, %2, %3}, [a]; add.u64 %4, %4, %6; }"
      : "=r"(pack.word[0]), "=r"(pack.word[1]), "=r"(pack.word[2]), "=r"(pack.word[3]), "+l"(cursor.at)
      : "l"(cursor.end), "l"(cursor.stride), "l"(cursor.first)
      : "memory");
}
THESEUS_INLINE void store_vector(const Vector& pack, Cursor& cursor) {
  asm volatile(
      "{ .reg .pred in; setp.lt.u64 in, %0, %1; @in st.global.v4.u32 [%0], {%3, %4, %5, %6}; add.u64 %0, %0, %2; }"
      : "+l"(cursor.at)
      : "l"(cursor.end), "l"(cursor.stride), "r"(pack.word[0]), "r"(pack.word[1]), "r"(pack.word[2]), "r"(pack.word[3])
      : "memory");
}

// One element of kBytes, in the pack's low bits.
#define THESEUS_LOAD(kind)                                                                                     \
  asm volatile("{ .reg .pred in; .reg .u64 a; setp.lt.u64 in, %1, %2; selp.b64 a, %1, %4, in; ld.global." kind \
               " %0, [a]; add.u64 %1, %1, %3; }"                                                               \
               : "=r"(pack.word[0]), "+l"(cursor.at)                                                           \
               : "l"(cursor.end), "l"(cursor.stride), "l"(cursor.first)                                        \
               : "memory")
#define THESEUS_STORE(kind)                                                                                      \
  asm volatile("{ .reg .pred in; setp.lt.u64 in, %0, %1; @in st.global." kind " [%0], %3; add.u64 %0, %0, %2; }" \
               : "+l"(cursor.at)                                                                                 \
               : "l"(cursor.end), "l"(cursor.stride), "r"(pack.word[0])                                          \
               : "memory")
template <int kBytes>
THESEUS_INLINE void load_element(Vector& pack, Cursor& cursor) {
  if constexpr (kBytes == 1) THESEUS_LOAD("u8");
  if constexpr (kBytes == 2) THESEUS_LOAD("u16");
  if constexpr (kBytes == 4) THESEUS_LOAD("u32");
  if constexpr (kBytes == 8) {
    asm volatile(
        "{ .reg .pred in; .reg .u64 a; setp.lt.u64 in, %2, %3; selp.b64 a, %2, %5, in; "
        "ld.global.v2.u32 {%0, %1}, [a]; add.u64 %2, %2, %4; }"
        : "=r"(pack.word[0]), "=r"(pack.word[1]), "+l"(cursor.at)
        : "l"(cursor.end), "l"(cursor.stride), "l"(cursor.first)
        : "memory");
  }
}
template <int kBytes>
THESEUS_INLINE void store_element(const Vector& pack, Cursor& cursor) {
  if constexpr (kBytes == 1) THESEUS_STORE("u8");
  if constexpr (kBytes == 2) THESEUS_STORE("u16");
  if constexpr (kBytes == 4) THESEUS_STORE("u32");
  if constexpr (kBytes == 8) {
    asm volatile("{ .reg .pred in; setp.lt.u64 in, %0, %1; @in st.global.v2.u32 [%0], {%3, %4}; add.u64 %0, %0, %2; }"
                 : "+l"(cursor.at)
                 : "l"(cursor.end), "l"(cursor.stride), "r"(pack.word[0]), "r"(pack.word[1])
                 : "memory");
  }
}
#undef THESEUS_LOAD
#undef THESEUS_STORE

#else

inline Cursor cursor_at(const U8* at, const U8* end, U32 stride) {
  const U64 first = reinterpret_cast<U64>(at);
  return {first, first, reinterpret_cast<U64>(end), stride};
}
template <int kBytes>
inline void load_element(Vector& pack, Cursor& cursor) {
  pack = {};
  const U64 at = cursor.at < cursor.end ? cursor.at : cursor.first;
  __builtin_memcpy(&pack, reinterpret_cast<const void*>(at), kBytes);
  cursor.at += cursor.stride;
}
template <int kBytes>
inline void store_element(const Vector& pack, Cursor& cursor) {
  if (cursor.at < cursor.end) __builtin_memcpy(reinterpret_cast<void*>(cursor.at), &pack, kBytes);
  cursor.at += cursor.stride;
}
inline void load_vector(Vector& pack, Cursor& cursor) { load_element<kVectorBytes>(pack, cursor); }
inline void store_vector(const Vector& pack, Cursor& cursor) { store_element<kVectorBytes>(pack, cursor); }

#endif

}  // namespace theseus::device
