// Moving data between places in memory, slots among them, with all threads of a TB. Whole 16-byte vectors where all
// addresses allow it, element by element elsewhere; several in flight at once, to cover the latency of memory.
//
// The result may go exactly where one of the sources lies: each thread has read an element before it writes it.
#pragma once

#include "device/frame.cuh"
#include "device/packs.cuh"

namespace theseus::device {

template <class Numbers_>
struct VectorUnit {
  using Numbers = Numbers_;
  using Held = Vector;
  static constexpr U32 kBytes = kVectorBytes;
  // Elements whose conversion takes many instructions keep the arithmetic busy with fewer.
  static constexpr int kUnits = sizeof(typename Numbers::Code) >= 4 ? 4 : Numbers::kNarrowFloat ? 1 : 2;
  THESEUS_INLINE static Held load(const U8* at) { return load_vector(at); }
  THESEUS_INLINE static void store(U8* at, const Held& held) { store_vector(at, held); }
};

template <class Numbers_>
struct ElementUnit {
  using Numbers = Numbers_;
  using Code = typename Numbers::Code;
  using Held = Single<Code>;
  static constexpr U32 kBytes = sizeof(Code);
  static constexpr int kUnits = 4;
  THESEUS_INLINE static Held load(const U8* at) { return {load_element<Code>(at)}; }
  THESEUS_INLINE static void store(U8* at, const Held& held) { store_element<Code>(at, held.code); }
};

// `kUnits` units of all sources and places, `stride` bytes apart.
template <class Unit, int kUnits, bool kScaling>
THESEUS_INLINE void move_units(const Frame& frame, U32 at, U32 stride) {
  using Held = typename Unit::Held;
  Held held[kUnits] = {};
  THESEUS_ROLL
  for (U32 source = 0; source < frame.sources; ++source) {
    const U8* const memory = frame.source[source] + at;
    Held next[kUnits];
    THESEUS_UNROLL
    for (int i = 0; i < kUnits; ++i) next[i] = Unit::load(memory + i * stride);
    if (kScaling && source + 1 == frame.scaled) {
      THESEUS_UNROLL
      for (int i = 0; i < kUnits; ++i) next[i] = scale<typename Unit::Numbers>(next[i], frame.factor);
    }
    THESEUS_UNROLL
    for (int i = 0; i < kUnits; ++i)
      held[i] = source == 0 ? next[i] : combine<typename Unit::Numbers>(held[i], next[i]);
  }
  if (frame.target != nullptr) {
    THESEUS_UNROLL
    for (int i = 0; i < kUnits; ++i) Unit::store(frame.target + at + i * stride, held[i]);
  }
  if (frame.slot != nullptr) {
    THESEUS_UNROLL
    for (int i = 0; i < kUnits; ++i) Unit::store(frame.slot + at + i * stride, held[i]);
  }
}

// Bytes [from, end).
template <class Unit, bool kScaling>
THESEUS_INLINE void move_range(const Frame& frame, U32 from, U32 end) {
  const U32 stride = Tb::threads() * Unit::kBytes;
  U32 at = from + Tb::thread() * Unit::kBytes;
  if constexpr (Unit::kUnits > 1) {
    THESEUS_ROLL
    for (; at + (Unit::kUnits - 1) * stride < end; at += Unit::kUnits * stride) {
      move_units<Unit, Unit::kUnits, kScaling>(frame, at, stride);
    }
  }
  THESEUS_ROLL
  for (; at < end; at += stride) move_units<Unit, 1, kScaling>(frame, at, stride);
}

template <class Numbers, bool kScaling>
THESEUS_INLINE void move_memory(const Frame& frame) {
  U64 bits = reinterpret_cast<U64>(frame.target) | reinterpret_cast<U64>(frame.slot);
  THESEUS_ROLL
  for (U32 i = 0; i < frame.sources; ++i) bits |= reinterpret_cast<U64>(frame.source[i]);
  const U32 vectors = bits % kVectorBytes == 0 ? frame.bytes / kVectorBytes * kVectorBytes : 0;
  move_range<VectorUnit<Numbers>, kScaling>(frame, 0, vectors);
  move_range<ElementUnit<Numbers>, kScaling>(frame, vectors, frame.bytes);
}

}  // namespace theseus::device
