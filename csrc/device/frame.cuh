// What the leading thread of a TB tells the others about an instruction. To all of them it is the same thing: sources
// are combined in their order, and the result goes to up to two places. The leading thread fills the frame before the
// barrier that begins the movement of data; the others read it up to the barrier that ends it.
#pragma once

#include "device/block.cuh"

namespace theseus::device {

inline constexpr I32 kNoLink = -1;

// Frame::stop: why the launch is over for this TB.
inline constexpr U32 kAborted = 1, kDone = 2, kWrongKernel = 4, kOtherCall = 8, kWrongLength = 16;

// Frame::place
inline constexpr U32 kTarget = 0, kSlot = 1;

struct Frame {
  // Local memory, slots of the Simple protocol, or lines of LL.
  const U8* source[kMostOperands];
  I32 link[kMostOperands];  // of each source; kNoLink: local memory
  U32 flag[kMostOperands];  // LL: of a source's lines
  U32 sources;
  U32 scaled;      // 1 + the source that is multiplied by `factor` first; 0: none
  U64 factor;      // one element
  U8* place[2];    // kTarget: local memory; kSlot: a slot; null: none
  U64 addresses;   // all of them, joined by or: whether they are aligned
  U32 slot_flag;   // LL: of the slot's lines
  U32 slot_sweep;  // LL: lines of the slot, if all must be written; else 0
  U32 bytes;       // of each source, and of the result
  U32 stop;        // not 0: the launch is over: kAborted and those below it in that list
  U32 broken;      // raised by any thread that gave up waiting for a line
  const U32* abort;
  // For the leading thread alone.
  I32 send;      // link that the slot belongs to
  I32 suspect;   // link that a fault is about
  U32 measured;  // 1: `bytes` comes from a message
  U32 micro_batch;
  U32 before, width;  // instructions of the TB in earlier loops, and in this one
  U32 loop, step;     // where the interpreting kernel is, in Program's arrays
  U64 launched;       // number of the launch, as it stands above the finished instructions (Progress)
};

}  // namespace theseus::device
