// What a plan's instructions do, one function each. Kernels call them in order, interpreted or as a straight program:
//
//   Primitives<...> tb(request, frame);
//   tb.enter();
//   for (tb.begin_loop(); tb.in_loop(); tb.next()) {             // micro-batches
//     tb.wait(...);                                              // for other TBs
//     if (!tb.send(...)) return;                                 // an instruction; false: the launch is over
//     tb.signal(...);                                            // where another TB waits for it
//   }
//   tb.leave();
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

// The second and third part of an instruction; false: the launch is over.
template <class Numbers, Protocol kProtocol, bool kScaling>
THESEUS_INLINE bool complete(const Request& request, Frame& frame) {
  Tb::barrier();
  if (frame.stop != 0) return false;
  if constexpr (kProtocol == Protocol::LL) {
    move_lines<Numbers, kScaling>(frame);
  } else {
    move_memory<Numbers, kScaling>(frame);
  }
  Tb::barrier();
  if (frame.broken != 0) return false;
  if (Tb::leads()) Leader<Numbers, kProtocol, kScaling>::finish(request, frame);
  return true;
}

// A whole instruction, for kernels that have many of them in their text: each is one call. It takes the message of
// `recv`, local memory at `src`, and at `dst` as well where `reduces`, and leaves the result at `dst` and in a slot of
// `send`; what it has not is kNoLink, or in Space::None.
template <class Numbers, Protocol kProtocol, bool kScaling>
THESEUS_CALL bool perform(const Request& request, Frame& frame, I32 recv, I32 send, Space src, I32 src_block,
                          I32 src_piece, Space dst, I32 dst_block, I32 dst_piece, bool reduces) {
  using Part = Leader<Numbers, kProtocol, kScaling>;
  if (Tb::leads()) {
    if (recv != kNoLink) Part::add_message(request, frame, recv);
    if (src != Space::None) Part::add_local(request, frame, src, src_block, src_piece);
    if (reduces) Part::add_local(request, frame, dst, dst_block, dst_piece);
    if (dst != Space::None) Part::set_target(request, frame, dst, dst_block, dst_piece);
    if (send != kNoLink) Part::set_slot(request, frame, send);
  }
  return complete<Numbers, kProtocol, kScaling>(request, frame);
}

// Kernels without kScaling refuse requests that scale.
template <class Numbers, Protocol kProtocol, bool kScaling>
class Primitives {
 public:
  THESEUS_INLINE Primitives(const Request& request, Frame& frame) : request_(request), frame_(frame) {}

  THESEUS_INLINE void enter() {
    if (Tb::leads()) Part::enter(request_, frame_);
  }
  // Only where no instruction failed.
  THESEUS_INLINE void leave() {
    if (Tb::leads()) Part::leave(request_);
  }

  THESEUS_INLINE void begin_loop() { go_to(0); }
  THESEUS_INLINE bool in_loop() const { return micro_batch_ < request_.micro_batches; }
  THESEUS_INLINE void next() { go_to(micro_batch_ + 1); }

  // Arguments as in Wait.
  THESEUS_INLINE void wait(U32 block, U32 distance, U32 before, U32 width, U32 place) {
    Part::wait_if_leading(request_, frame_, block, distance, before, width, place);
  }
  // The TB has finished the instruction that stands at `place` (from 1) of the loop; the others as in Wait.
  THESEUS_INLINE void signal(U32 before, U32 width, U32 place) {
    Part::signal_if_leading(request_, frame_, before, width, place);
  }

  // Only waits.
  THESEUS_INLINE bool nothing() { return act(kNoLink, kNoLink, kNowhere, kNowhere); }
  THESEUS_INLINE bool send(I32 link, Location src) { return act(kNoLink, link, src, kNowhere); }
  THESEUS_INLINE bool recv(I32 link, Location dst) { return act(link, kNoLink, kNowhere, dst); }
  THESEUS_INLINE bool recv_copy_send(I32 from, I32 to, Location dst) { return act(from, to, kNowhere, dst); }
  THESEUS_INLINE bool recv_reduce_copy(I32 link, Location src, Location dst) { return act(link, kNoLink, src, dst); }
  THESEUS_INLINE bool recv_reduce_send(I32 from, I32 to, Location src) { return act(from, to, src, kNowhere); }
  THESEUS_INLINE bool recv_reduce_copy_send(I32 from, I32 to, Location src, Location dst) {
    return act(from, to, src, dst);
  }
  THESEUS_INLINE bool copy(Location src, Location dst) { return act(kNoLink, kNoLink, src, dst); }
  THESEUS_INLINE bool reduce(Location src, Location dst) { return act(kNoLink, kNoLink, src, dst, true); }

  // The next operand of the fold that follows: the message of `link`, or for kLocalOperand what lies at `src`.
  THESEUS_INLINE void operand(I32 link, Location src) {
    Part::add_if_leading(request_, frame_, link, src.space, src.block, src.piece);
  }
  THESEUS_INLINE bool fold(Location dst) { return act(kNoLink, kNoLink, kNowhere, dst); }

 private:
  using Part = Leader<Numbers, kProtocol, kScaling>;

  THESEUS_INLINE void go_to(U32 micro_batch) {
    micro_batch_ = micro_batch;
    if (Tb::leads()) frame_.micro_batch = micro_batch;
  }
  THESEUS_INLINE bool act(I32 recv, I32 send, Location src, Location dst, bool reduces = false) {
    return perform<Numbers, kProtocol, kScaling>(request_, frame_, recv, send, src.space, src.block, src.piece,
                                                 dst.space, dst.block, dst.piece, reduces);
  }

  const Request& request_;
  Frame& frame_;
  U32 micro_batch_ = 0;
};

}  // namespace theseus::device
