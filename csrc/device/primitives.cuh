// What a plan's instructions do, one function each. Kernels call them in order, interpreted or as a straight program:
//
//   Primitives<...> tb(request, frame);
//   tb.enter();
//   for (tb.begin_loop(...); tb.in_loop(); tb.next()) {          // micro-batches
//     tb.wait(...);                                              // for other TBs
//     tb.send(...);                                              // an instruction
//     if (!tb.recv(...)) break;                                  // the last one of the loop
//   }
//   tb.leave();
//
// Once the launch is over, by an abort or a fault, instructions do nothing and return false; it is enough to ask the
// last one.
//
// Each instruction is three parts. The leading thread waits for what it needs, and fills the frame; all threads move
// the data; the leading thread tells the other sides. A barrier stands between them, so that the flags that one thread
// reads and writes order what all of them do.
#pragma once

#include "device/leader.cuh"
#include "device/simple.cuh"

namespace theseus::device {

THESEUS_INLINE constexpr Location input(I32 block, I32 piece) { return {Space::Input, {}, block, piece}; }
THESEUS_INLINE constexpr Location output(I32 block, I32 piece) { return {Space::Output, {}, block, piece}; }
THESEUS_INLINE constexpr Location scratch(I32 index) { return {Space::Scratch, {}, 0, index}; }
inline constexpr Location kNowhere = {Space::None, {}, 0, 0};

// The second and third part of an instruction, whose place in its loop others wait for, if it is not 0; false: the
// launch is over, and nothing was done.
template <class Numbers, Protocol kProtocol, bool kScaling>
THESEUS_INLINE bool complete(const Request& request, Frame& frame, U32 place) {
  using Part = Leader<Numbers, kProtocol, kScaling>;
  Tb::barrier();
  if (frame.stop != 0) return false;
  if constexpr (kProtocol == Protocol::LL) {
    move_lines<Numbers, kScaling>(frame);
  } else {
    move_memory<Numbers, kScaling>(frame);
  }
  Tb::barrier();
  if (!Tb::leads()) return true;
  if (kProtocol == Protocol::LL && frame.broken != 0) {
    frame.stop = kAborted;
    return true;
  }
  Part::finish(request, frame);
  if (place != 0) Part::signal(request, frame, place);
  return true;
}

// What an instruction has to do with, in one word, so that a call of perform() takes few: from bit 0 `recv`, from 16
// `send` (links; kNoLink: none), from 32 the Space of its source, from 34 that of its target, 36: the target is a
// source too; from 48 the place, from 1, that the TB is told to have finished; 0: nobody waits for it.
THESEUS_INLINE constexpr U64 parts_of(I32 recv, I32 send, Space src, Space dst, bool reduces, U32 place) {
  return (static_cast<U64>(recv) & 0xffff) | (static_cast<U64>(send) & 0xffff) << 16 | static_cast<U64>(src) << 32 |
         static_cast<U64>(dst) << 34 | static_cast<U64>(reduces) << 36 | static_cast<U64>(place) << 48;
}
THESEUS_INLINE constexpr U64 place_of(const Location& at) {
  return static_cast<U64>(static_cast<U32>(at.block)) << 32 | static_cast<U32>(at.piece);
}

// A whole instruction, for kernels that have many of them in their text: each is one call. It takes the message of
// `recv`, local memory at `src`, and at `dst` as well where it reduces, and leaves the result at `dst` and in a slot of
// `send`. Blocks and pieces as in place_of(). False: the launch is over, and nothing was done.
template <class Numbers, Protocol kProtocol, bool kScaling>
THESEUS_CALL bool perform(const Request& request, Frame& frame, U64 parts, U64 src, U64 dst) {
  using Part = Leader<Numbers, kProtocol, kScaling>;
  if (Tb::leads() && frame.stop == 0) {
    const I32 recv = static_cast<short>(parts), send = static_cast<short>(parts >> 16);
    const Space source = static_cast<Space>(parts >> 32 & 3), target = static_cast<Space>(parts >> 34 & 3);
    const I32 dst_block = static_cast<I32>(dst >> 32), dst_piece = static_cast<I32>(dst);
    if (recv != kNoLink) Part::add_link(request, frame, recv, false);
    if (source != Space::None) {
      Part::add_local(request, frame, source, static_cast<I32>(src >> 32), static_cast<I32>(src), false);
    }
    if ((parts >> 36 & 1) != 0) Part::add_local(request, frame, target, dst_block, dst_piece, false);
    if (target != Space::None) Part::add_local(request, frame, target, dst_block, dst_piece, true);
    if (send != kNoLink) Part::add_link(request, frame, send, true);
  }
  return complete<Numbers, kProtocol, kScaling>(request, frame, static_cast<U32>(parts >> 48));
}

// Kernels without kScaling refuse requests that scale.
//
// The last argument of an instruction: the place, from 1, that it has in its loop, where another TB waits for it; else
// 0.
template <class Numbers, Protocol kProtocol, bool kScaling>
class Primitives {
 public:
  THESEUS_INLINE Primitives(const Request& request, Frame& frame) : request_(request), frame_(frame) {}

  THESEUS_INLINE void enter() {
    if (Tb::leads()) Part::enter(request_, frame_);
  }
  THESEUS_INLINE void leave() {
    if (Tb::leads()) Part::leave(request_, frame_);
  }

  // A loop of `width` instructions, after `before` in earlier loops.
  THESEUS_INLINE void begin_loop(U32 before, U32 width) {
    if (Tb::leads()) {
      frame_.before = before;
      frame_.width = width;
    }
    go_to(0);
  }
  THESEUS_INLINE bool in_loop() const { return micro_batch_ < request_.micro_batches; }
  THESEUS_INLINE void next() { go_to(micro_batch_ + 1); }

  // Arguments as in Wait.
  THESEUS_INLINE void wait(U32 block, U32 distance, U32 before, U32 width, U32 place) {
    Part::wait_if_leading(request_, frame_, block, distance, before, width, place);
  }

  // Only waits.
  THESEUS_INLINE bool nothing(U32 place) { return act(kNoLink, kNoLink, kNowhere, kNowhere, place); }
  THESEUS_INLINE bool send(I32 link, Location src, U32 place) { return act(kNoLink, link, src, kNowhere, place); }
  THESEUS_INLINE bool recv(I32 link, Location dst, U32 place) { return act(link, kNoLink, kNowhere, dst, place); }
  THESEUS_INLINE bool recv_copy_send(I32 from, I32 to, Location dst, U32 place) {
    return act(from, to, kNowhere, dst, place);
  }
  THESEUS_INLINE bool recv_reduce_copy(I32 link, Location src, Location dst, U32 place) {
    return act(link, kNoLink, src, dst, place);
  }
  THESEUS_INLINE bool recv_reduce_send(I32 from, I32 to, Location src, U32 place) {
    return act(from, to, src, kNowhere, place);
  }
  THESEUS_INLINE bool recv_reduce_copy_send(I32 from, I32 to, Location src, Location dst, U32 place) {
    return act(from, to, src, dst, place);
  }
  THESEUS_INLINE bool copy(Location src, Location dst, U32 place) { return act(kNoLink, kNoLink, src, dst, place); }
  THESEUS_INLINE bool reduce(Location src, Location dst, U32 place) {
    return act(kNoLink, kNoLink, src, dst, place, true);
  }

  // The next operand of the fold that follows: the message of `link`, or for kLocalOperand what lies at `src`.
  THESEUS_INLINE void operand(I32 link, Location src) {
    Part::add_if_leading(request_, frame_, link, src.space, src.block, src.piece);
  }
  THESEUS_INLINE bool fold(Location dst, U32 place) { return act(kNoLink, kNoLink, kNowhere, dst, place); }

 private:
  using Part = Leader<Numbers, kProtocol, kScaling>;

  THESEUS_INLINE void go_to(U32 micro_batch) {
    micro_batch_ = micro_batch;
    if (Tb::leads()) frame_.micro_batch = micro_batch;
  }
  THESEUS_INLINE bool act(I32 recv, I32 send, Location src, Location dst, U32 place, bool reduces = false) {
    return perform<Numbers, kProtocol, kScaling>(
        request_, frame_, parts_of(recv, send, src.space, dst.space, reduces, place), place_of(src), place_of(dst));
  }

  const Request& request_;
  Frame& frame_;
  U32 micro_batch_ = 0;
};

}  // namespace theseus::device
