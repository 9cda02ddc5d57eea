// The words through which TBs and ranks order their work. All else is plain memory, read and written between them.
//
// Every flag is written by one side and read by the other, and each pair below is a release and an acquire: what the
// writer's TB did before, the reader's TB sees after. Both ends are one thread of a TB with a barrier on the other side
// of it, which extends the order to the whole TB. `System` is for flags that another device, another process or the
// host reads; `Device` for those between the TBs of one launch.
//
// Inline PTX, as <cuda/atomic> makes NVRTC eight times slower; a release or acquire is always part of the access to
// the flag itself, never a fence beside a plain or volatile one.
#pragma once

#include "device/block.cuh"

namespace theseus::device {

// Two words that arrive each by itself: LL lines.
struct Line {
  U64 low;
  U64 high;
};

#if defined(__CUDACC__)

THESEUS_INLINE U64 load_acquire_system(const U64* flag) {
  U64 value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(__cvta_generic_to_global(flag)) : "memory");
  return value;
}

THESEUS_INLINE void store_release_system(U64* flag, U64 value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(flag)), "l"(value) : "memory");
}

THESEUS_INLINE U64 load_acquire_device(const U64* flag) {
  U64 value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(__cvta_generic_to_global(flag)) : "memory");
  return value;
}

THESEUS_INLINE void store_release_device(U64* flag, U64 value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(flag)), "l"(value) : "memory");
}

// Returns the value before.
THESEUS_INLINE U64 add_device(U64* counter, U64 amount) {
  U64 before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(__cvta_generic_to_global(counter)), "l"(amount)
               : "memory");
  return before;
}

THESEUS_INLINE U32 load_relaxed_system(const U32* flag) {
  U32 value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(flag)) : "memory");
  return value;
}

THESEUS_INLINE Line load_line(const Line* line) {
  Line value;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(value.low), "=l"(value.high)
               : "l"(__cvta_generic_to_global(line))
               : "memory");
  return value;
}

THESEUS_INLINE void store_line(Line* line, Line value) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(line)), "l"(value.low),
               "l"(value.high)
               : "memory");
}

// Among the threads of a TB, between two barriers: any of them may raise it, nobody reads it.
THESEUS_INLINE void raise(U32* flag) { asm volatile("st.relaxed.cta.u32 [%0], 1;" ::"l"(flag) : "memory"); }

#else

inline U64 load_acquire_system(const U64* flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }
inline void store_release_system(U64* flag, U64 value) { __atomic_store_n(flag, value, __ATOMIC_RELEASE); }
inline U64 load_acquire_device(const U64* flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }
inline void store_release_device(U64* flag, U64 value) { __atomic_store_n(flag, value, __ATOMIC_RELEASE); }
inline U64 add_device(U64* counter, U64 amount) { return __atomic_fetch_add(counter, amount, __ATOMIC_ACQ_REL); }
inline U32 load_relaxed_system(const U32* flag) { return __atomic_load_n(flag, __ATOMIC_RELAXED); }
inline Line load_line(const Line* line) {
  return {__atomic_load_n(&line->low, __ATOMIC_RELAXED), __atomic_load_n(&line->high, __ATOMIC_RELAXED)};
}
inline void store_line(Line* line, Line value) {
  __atomic_store_n(&line->low, value.low, __ATOMIC_RELAXED);
  __atomic_store_n(&line->high, value.high, __ATOMIC_RELAXED);
}
inline void raise(U32* flag) { __atomic_store_n(flag, 1u, __ATOMIC_RELAXED); }

#endif

// The flags of a connection.
//
// posted (sender to receiver, Simple). Release: the data in the slot is written before the word that announces it.
// Acquire: nobody reads the slot before the word is there.
THESEUS_INLINE void store_posted(U64* word, U64 value) { store_release_system(word, value); }

// taken (receiver to sender, both protocols). Release: all reads of the slot, or its lines, are done before the counter
// says so. Acquire: nobody writes that slot again before.
THESEUS_INLINE void store_taken(U64* counter, U64 value) { store_release_system(counter, value); }

// Either of the two.
THESEUS_INLINE U64 load_of_link(const U64* flag) { return load_acquire_system(flag); }

// finished (TB to TB of a launch). Release: what an instruction wrote to Output or Scratch, and what it read there, is
// done before it counts as finished. Acquire: a TB that waits for it touches those places only after.
THESEUS_INLINE U64 load_finished(const U64* counter) { return load_acquire_device(counter); }
THESEUS_INLINE void store_finished(U64* counter, U64 value) { store_release_device(counter, value); }

// Lines (sender to receiver, LL) are relaxed: each word is data and flag together, so it orders itself. So is the
// abort flag: it protects no data.

}  // namespace theseus::device
