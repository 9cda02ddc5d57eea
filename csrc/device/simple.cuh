// Moving data between places in memory, slots among them, with all threads of a TB. Whole 16-byte vectors where all
// addresses allow it, element by element elsewhere; several in flight at once, to cover the latency of memory.
//
// Both ways, and all that is left at the end, are the same text: it is what a kernel takes longest to compile.
//
// The result may go exactly where one of the sources lies: each thread has read an element before it writes it.
#pragma once

#include "device/frame.cuh"
#include "device/packs.cuh"

namespace theseus::device {

// What a thread moves at once: kUnits vectors, or elements in the low bits of such.
template <class Numbers>
struct Units {
  using Code = typename Numbers::Code;
  // Elements whose conversion takes many instructions keep the arithmetic busy with fewer.
  static constexpr int kUnits = sizeof(Code) >= 4 ? 4 : Numbers::kNarrowFloat ? 1 : 2;
  static constexpr int kCells = kCellsOf<Numbers, 4>;
  Vector unit[kUnits];

  THESEUS_INLINE void load(Cursor cursor, bool vectors) {
    if (vectors) {
      THESEUS_UNROLL
      for (int i = 0; i < kUnits; ++i) load_vector(unit[i], cursor);
    } else {
      THESEUS_UNROLL
      for (int i = 0; i < kUnits; ++i) load_element<sizeof(Code)>(unit[i], cursor);
    }
  }
  THESEUS_INLINE void store(Cursor cursor, bool vectors) const {
    if (vectors) {
      THESEUS_UNROLL
      for (int i = 0; i < kUnits; ++i) store_vector(unit[i], cursor);
    } else {
      THESEUS_UNROLL
      for (int i = 0; i < kUnits; ++i) store_element<sizeof(Code)>(unit[i], cursor);
    }
  }
  THESEUS_INLINE void combine_with(const Units& right, bool vectors) {
    THESEUS_UNROLL
    for (int i = 0; i < kUnits; ++i) combine<Numbers, 0, 1>(unit[i], right.unit[i]);
    if (!vectors) return;
    THESEUS_UNROLL
    for (int i = 0; i < kUnits; ++i) combine<Numbers, 1, kCells>(unit[i], right.unit[i]);
  }
  THESEUS_INLINE void scale_by(U64 factor, bool vectors) {
    THESEUS_UNROLL
    for (int i = 0; i < kUnits; ++i) scale<Numbers, 0, 1>(unit[i], factor);
    if (!vectors) return;
    THESEUS_UNROLL
    for (int i = 0; i < kUnits; ++i) scale<Numbers, 1, kCells>(unit[i], factor);
  }
};

// What a thread moves at once, from all sources to all places: from `at` on, before `end`.
template <class Numbers, bool kScaling>
THESEUS_INLINE void move_units(const Frame& frame, U32 at, U32 end, U32 stride, bool vectors) {
  Units<Numbers> held;
  held.load(cursor_at(frame.source[0] + at, frame.source[0] + end, stride), vectors);
  if (kScaling && frame.scaled == 1) held.scale_by(frame.factor, vectors);
  THESEUS_ROLL
  for (U32 source = 1; source < frame.sources; ++source) {
    Units<Numbers> next;
    next.load(cursor_at(frame.source[source] + at, frame.source[source] + end, stride), vectors);
    if (kScaling && source + 1 == frame.scaled) next.scale_by(frame.factor, vectors);
    held.combine_with(next, vectors);
  }
  THESEUS_ROLL
  for (U8* const place : frame.place) {
    if (place != nullptr) held.store(cursor_at(place + at, place + end, stride), vectors);
  }
}

template <class Numbers, bool kScaling>
THESEUS_INLINE void move_memory(const Frame& frame) {
  constexpr U32 kElement = sizeof(typename Numbers::Code);
  const U32 whole = frame.addresses % kVectorBytes == 0 ? frame.bytes / kVectorBytes * kVectorBytes : 0;
  U32 from = 0;
  THESEUS_ROLL
  for (U32 end = whole;; end = frame.bytes) {
    const bool vectors = from < whole;
    const U32 unit = vectors ? kVectorBytes : kElement;
    const U32 stride = Tb::threads() * unit;
    THESEUS_ROLL
    for (U32 at = from + Tb::thread() * unit; at < end; at += Units<Numbers>::kUnits * stride) {
      move_units<Numbers, kScaling>(frame, at, end, stride, vectors);
    }
    if (end == frame.bytes) return;
    from = end;
  }
}

}  // namespace theseus::device
