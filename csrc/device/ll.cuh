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

struct Received {
  LinePack pack;
  U32 given_up;  // 1: there is no line
};

// Waits for a line of a message. A call, as what waits beside it costs more than the call, and compilers take long over
// loops in loops.
THESEUS_CALL inline Received receive_line(const Line* line, U32 flag, const U32* abort) {
  THESEUS_ROLL
  for (U32 turns = 0;;) {
    const Line value = load_line(line);
    const Received received = {{{static_cast<U32>(value.low), static_cast<U32>(value.high)}}, 0};
    if (static_cast<U32>(value.low >> 32) == flag && static_cast<U32>(value.high >> 32) == flag) return received;
    if (gives_up(turns, abort)) return {received.pack, 1};
  }
}

THESEUS_INLINE void send_line(Line* line, U32 flag, const LinePack& pack) {
  const U64 high = static_cast<U64>(flag) << 32;
  store_line(line, {high | pack.word[0], high | pack.word[1]});
}

// A line's worth of memory at `at`, of which `left` bytes are there; the rest is zero.
template <int kElement>
THESEUS_INLINE LinePack load_part(const U8* at, U32 left) {
  LinePack pack = {};
  Cursor cursor = cursor_at(at, at + left, kElement);
  THESEUS_UNROLL
  for (U32 i = 0; i < kLineData; i += kElement) {
    Vector element;
    load_element<kElement>(element, cursor);
    if (i >= left) element = {};
    pack.word[i / 4] |= element.word[0] << (i % 4 * 8);
    if constexpr (kElement == 8) pack.word[1] = element.word[1];
  }
  return pack;
}

template <int kElement>
THESEUS_INLINE void store_part(const LinePack& pack, U8* at, U32 left) {
  Cursor cursor = cursor_at(at, at + left, kElement);
  THESEUS_UNROLL
  for (U32 i = 0; i < kLineData; i += kElement) {
    const Vector element = {{pack.word[i / 4] >> (i % 4 * 8), pack.word[1]}};
    store_element<kElement>(element, cursor);
  }
}

// Slots are lines, and so are sources that arrived; the others are memory.
template <class Numbers, bool kScaling>
THESEUS_INLINE void move_lines(Frame& frame) {
  constexpr int kElement = sizeof(typename Numbers::Code);
  constexpr int kCells = kCellsOf<Numbers, 2>;
  Line* const slot = reinterpret_cast<Line*>(frame.place[kSlot]);
  U8* const target = frame.place[kTarget];
  THESEUS_ROLL
  for (U32 at = Tb::thread() * kLineData; at < frame.bytes; at += Tb::threads() * kLineData) {
    const U32 left = frame.bytes - at;
    const U32 line = 1 + at / kLineData;
    LinePack held = {};
    THESEUS_ROLL
    for (U32 source = 0; source < frame.sources; ++source) {
      LinePack next = {};
      if (frame.link[source] == kNoLink) {
        next = load_part<kElement>(frame.source[source] + at, left);
      } else {
        const Line* const lines = reinterpret_cast<const Line*>(frame.source[source]);
        const Received received = receive_line(lines + line, frame.flag[source], frame.abort);
        if (received.given_up != 0) return raise(&frame.broken);
        next = received.pack;
      }
      if (kScaling && source + 1 == frame.scaled) scale<Numbers, 0, kCells>(next, frame.factor);
      if (source == 0) {
        held = next;
      } else {
        combine<Numbers, 0, kCells>(held, next);
      }
    }
    if (slot != nullptr) send_line(slot + line, frame.slot_flag, held);
    if (target != nullptr) store_part<kElement>(held, target + at, left);
  }
  THESEUS_ROLL
  for (U32 line = lines_for(frame.bytes) + Tb::thread(); line < frame.slot_sweep; line += Tb::threads()) {
    send_line(slot + line, frame.slot_flag, {});
  }
}

}  // namespace theseus::device
