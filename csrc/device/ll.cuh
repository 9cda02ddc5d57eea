// The LL protocol: messages as lines of 8 bytes of data with a flag beside each half (kernel_abi.h), so that data needs
// no announcement and waits for nothing but itself. Half of the bandwidth for the shortest way: for small messages.
//
// The first line of a message is its header: length and tag.
#pragma once

#include "device/flags.cuh"
#include "device/frame.cuh"
#include "device/packs.cuh"

namespace theseus::device {

// Whether it is time to give up; asked now and then, as the flag lies in host memory.
THESEUS_INLINE bool gives_up(U32& turns, const U32* abort) {
  THESEUS_PAUSE();
  return (++turns & 255u) == 0 && load_relaxed_system(abort) != 0;
}

// Waits for a line of a message; false: given up.
THESEUS_INLINE bool receive_line(const Line* line, U32 flag, const U32* abort, LinePack& pack) {
  THESEUS_ROLL
  for (U32 turns = 0;;) {
    const Line value = load_line(line);
    if (static_cast<U32>(value.low >> 32) == flag && static_cast<U32>(value.high >> 32) == flag) {
      pack = {{static_cast<U32>(value.low), static_cast<U32>(value.high)}};
      return true;
    }
    if (gives_up(turns, abort)) return false;
  }
}

THESEUS_INLINE void send_line(Line* line, U32 flag, const LinePack& pack) {
  const U64 high = static_cast<U64>(flag) << 32;
  store_line(line, {high | pack.word[0], high | pack.word[1]});
}

// A line's worth of memory at `at`, or its first `bytes`.
template <class Code>
THESEUS_INLINE LinePack load_part(const U8* at, U32 bytes) {
  LinePack pack = {};
  THESEUS_UNROLL
  for (U32 i = 0; i < kLineData / sizeof(Code); ++i) {
    if (i * sizeof(Code) < bytes) put_element(pack, static_cast<int>(i), load_element<Code>(at + i * sizeof(Code)));
  }
  return pack;
}

template <class Code>
THESEUS_INLINE void store_part(U8* at, U32 bytes, const LinePack& pack) {
  THESEUS_UNROLL
  for (U32 i = 0; i < kLineData / sizeof(Code); ++i) {
    if (i * sizeof(Code) < bytes) store_element(at + i * sizeof(Code), element_of<Code>(pack, static_cast<int>(i)));
  }
}

// Slots are lines, and so are sources that arrived; the others are memory.
template <class Numbers, bool kScaling>
THESEUS_INLINE void move_lines(Frame& frame) {
  using Code = typename Numbers::Code;
  THESEUS_ROLL
  for (U32 at = Tb::thread() * kLineData; at < frame.bytes; at += Tb::threads() * kLineData) {
    const U32 left = frame.bytes - at;
    const U32 line = 1 + at / kLineData;
    LinePack held = {};
    THESEUS_ROLL
    for (U32 source = 0; source < frame.sources; ++source) {
      LinePack next = {};
      if (frame.link[source] == kNoLink) {
        next = load_part<Code>(frame.source[source] + at, left);
      } else if (!receive_line(reinterpret_cast<const Line*>(frame.source[source]) + line, frame.flag[source],
                               frame.abort, next)) {
        return raise(&frame.broken);
      }
      if (kScaling && source + 1 == frame.scaled) next = scale<Numbers>(next, frame.factor);
      held = source == 0 ? next : combine<Numbers>(held, next);
    }
    if (frame.slot != nullptr) send_line(reinterpret_cast<Line*>(frame.slot) + line, frame.slot_flag, held);
    if (frame.target != nullptr) store_part<Code>(frame.target + at, left, held);
  }
  THESEUS_ROLL
  for (U32 line = lines_for(frame.bytes) + Tb::thread(); line < frame.slot_sweep; line += Tb::threads()) {
    send_line(reinterpret_cast<Line*>(frame.slot) + line, frame.slot_flag, {});
  }
}

}  // namespace theseus::device
