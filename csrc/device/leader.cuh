// What the leading thread of a TB does before and after the movement of data: it waits for flags, works out addresses,
// fills the frame, and tells the other sides. What several instructions of a text use is not inlined, so that a kernel
// holds it once.
//
// An instruction's sources come first, then its target, then its slot. Once frame.stop is set they all do nothing.
#pragma once

#include "device/flags.cuh"
#include "device/frame.cuh"
#include "device/ll.cuh"

namespace theseus::device {

// Where a piece of local memory lies in this micro-batch.
struct Range {
  U8* address;
  U32 bytes;
};

THESEUS_INLINE void clear(Frame& frame) {
  frame.sources = 0;
  frame.scaled = 0;
  frame.place[kTarget] = nullptr;
  frame.place[kSlot] = nullptr;
  frame.addresses = 0;
  frame.send = kNoLink;
  frame.slot_sweep = 0;
  frame.measured = 0;
  frame.bytes = 0;
}

// Waits until a flag, which only grows, has come to `needed` and not 2^48 beyond, and returns what it then is: of a
// posted word the number, which stands above the other 48 bits, must be the very one. The launch is over where a flag
// never comes so far.
template <U64 (*kLoad)(const U64*)>
THESEUS_CALL U64 wait_for(Frame& frame, const U64* flag, U64 needed) {
  U64 value = 0;
  THESEUS_ROLL
  for (U32 turns = 0; frame.stop == 0;) {
    value = kLoad(flag);
    if (value - needed < U64{1} << 48) break;
    if (gives_up(turns, frame.abort)) frame.stop = kAborted;
  }
  return value;
}

// How many instructions of a TB are finished, above the number of the launch; arguments as in Wait.
THESEUS_INLINE U64 instructions(const Request& request, const Frame& frame, U32 before, U32 micro_batch, U32 width,
                                U32 place) {
  return frame.launched + static_cast<U64>(before) * request.micro_batches + static_cast<U64>(micro_batch) * width +
         place;
}

template <class Numbers, Protocol kProtocol, bool kScaling>
struct Leader {
  using Code = typename Numbers::Code;
  static constexpr U32 kElement = sizeof(Code);

  THESEUS_CALL static void enter(const Request& request, Frame& frame) {
    clear(frame);
    frame.broken = 0;
    frame.factor = 0;
    frame.micro_batch = 0;
    frame.suspect = kNoLink;
    frame.abort = request.abort;
    frame.launched = request.progress->launch << kLaunchShift;
    const bool right = (request.type == Numbers::kType) & (request.reduction == Numbers::kReduction) &
                       (request.protocol == kProtocol) & (kScaling | (request.scaling == Scaling::None));
    frame.stop = right ? 0 : kWrongKernel;
    if constexpr (kScaling) {
      if (request.scaling == Scaling::Immediate) frame.factor = request.scalar;
      if (request.scaling == Scaling::Pointed) frame.factor = *static_cast<const Code*>(request.scalar_at);
    }
  }

  THESEUS_INLINE static void wait(const Request& request, Frame& frame, U32 block, U32 distance, U32 before, U32 width,
                                  U32 place) {
    if (distance > frame.micro_batch) return;
    wait_for<load_finished>(frame, request.progress->finished + block * kFinishedStride,
                            instructions(request, frame, before, frame.micro_batch - distance, width, place));
  }

  // The next message of a connection: one that arrived is a source; one that leaves gets its slot. One function, as
  // both ask the same first: is the slot ready?
  THESEUS_CALL static void add_link(const Request& request, Frame& frame, I32 index, bool sends) {
    const Link& link = *request.links[index];
    const U64 number = link.messages + 1;
    const bool lines = kProtocol == Protocol::LL;
    U8* const slot =
        lines ? reinterpret_cast<U8*>(link.lines) + static_cast<U64>(link.slot) * link.line_count * kLineBytes
              : link.slots + static_cast<U64>(link.slot) * link.slot_bytes;
    const U32 room = lines ? longest_ll_message(link.line_count) : link.slot_bytes;
    frame.suspect = index;
    U64 head = 0;  // of the message that arrived: tag and length in the low 48 bits
    if (sends || !lines) {
      head = wait_for<load_of_link>(frame, sends ? link.taken : link.posted + link.slot,
                                    sends ? number - link.slot_count : posted_word(number, 0, 0));
    }
    if constexpr (lines) {
      if (!sends && frame.stop == 0) {
        const Received header =
            receive_line(reinterpret_cast<const Line*>(slot), static_cast<U32>(number), frame.abort);
        head = posted_word(0, header.pack.word[1], header.pack.word[0]);
        frame.stop = header.given_up != 0 ? kAborted : 0;
      }
    }
    if (frame.stop != 0) return;
    if (sends) {
      frame.send = index;
      set_slot(request, frame, link, slot);
    } else {
      if constexpr (lines) frame.flag[frame.sources] = static_cast<U32>(number);
      add_source(frame, slot, index);
      const U32 bytes = static_cast<U32>(head);
      const bool wrong = (bytes > request.piece * kElement) | ((frame.measured != 0) & (bytes != frame.bytes));
      frame.stop = (static_cast<U32>(head >> 32) & 0xffff) != (request.tag & 0xffff) ? kOtherCall
                   : wrong                                                           ? kWrongLength
                                                                                     : 0;
      frame.bytes = bytes;
      frame.measured = 1;
    }
    if (frame.bytes > room) frame.stop = kWrongLength;
  }

  // Local memory: a source, or where the result goes. The first source of an instruction without messages says how long
  // it is.
  THESEUS_CALL static void add_local(const Request& request, Frame& frame, Space space, I32 block, I32 index,
                                     bool target) {
    const U64 skipped = static_cast<U64>(frame.micro_batch) * request.piece;
    U8* memory = nullptr;
    U32 bytes = 0;
    if (space == Space::Scratch) {
      const bool whole = request.scratch_rounds > 1;  // an index holds the whole chunk, not one micro-batch of it
      U32* const length =
          request.scratch_lengths + static_cast<U32>(index) * request.scratch_rounds + (whole ? frame.micro_batch : 0);
      if (target) *length = frame.bytes / kElement;
      bytes = *length * kElement;
      memory = request.scratch + static_cast<U64>(index) * request.scratch_stride + (whole ? skipped : 0) * kElement;
    } else {
      const U64 piece = static_cast<U64>(index);
      const U64 longer = request.longer;
      const U64 start =
          static_cast<U64>(block) * request.count + piece * request.chunk + (piece < longer ? piece : longer);
      const U64 length = request.chunk + (piece < longer ? 1 : 0);
      const U64 from = skipped < length ? skipped : length;
      const U64 left = length - from;
      bytes = (left < request.piece ? static_cast<U32>(left) : request.piece) * kElement;
      memory = static_cast<U8*>(space == Space::Input ? const_cast<void*>(request.input) : request.output) +
               (start + from) * kElement;
      // What a message brings is as long as the place that it belongs to; Scratch takes any.
      if ((frame.measured != 0) & (frame.bytes != bytes)) frame.stop = frame.stop == 0 ? kWrongLength : frame.stop;
    }
    if (target) {
      // A copy to where it lies already, as in a call in place.
      if ((frame.sources == 1) & (frame.source[0] == memory) & (frame.scaled == 0)) frame.bytes = 0;
      frame.place[kTarget] = memory;
      frame.addresses |= reinterpret_cast<U64>(memory);
    } else {
      frame.bytes = frame.sources == 0 ? bytes : frame.bytes;
      if (kScaling && request.scaling != Scaling::None && space == Space::Input) frame.scaled = frame.sources + 1;
      add_source(frame, memory, kNoLink);
    }
  }

  // The data has moved: the message that leaves is in its slot, and those that arrived have been read.
  THESEUS_INLINE static void finish(const Request& request, Frame& frame) {
    THESEUS_ROLL
    for (U32 source = 0; source <= frame.sources; ++source) {
      const bool sent = source == frame.sources;
      const I32 index = sent ? frame.send : frame.link[source];
      if (index == kNoLink) continue;
      Link& link = *request.links[index];
      const U64 number = link.messages + 1;
      if (!sent) {
        store_taken(link.taken, number);
      } else if constexpr (kProtocol == Protocol::Simple) {
        store_posted(link.posted + link.slot, posted_word(number, request.tag, frame.bytes));
      }
      link.messages = number;
      link.slot = link.slot + 1 == link.slot_count ? 0 : link.slot + 1;
    }
    clear(frame);
  }

  THESEUS_INLINE static void signal(const Request& request, const Frame& frame, U32 place) {
    store_finished(request.progress->finished + Tb::index() * kFinishedStride,
                   instructions(request, frame, frame.before, frame.micro_batch, frame.width, place));
  }

  // The same for all threads to call, of which one does it.
  THESEUS_CALL static void wait_if_leading(const Request& request, Frame& frame, U32 block, U32 distance, U32 before,
                                           U32 width, U32 place) {
    if (Tb::leads()) wait(request, frame, block, distance, before, width, place);
  }
  THESEUS_CALL static void add_if_leading(const Request& request, Frame& frame, I32 link, Space space, I32 block,
                                          I32 piece) {
    if (!Tb::leads() || frame.stop != 0) return;
    if (link == kLocalOperand) {
      add_local(request, frame, space, block, piece, false);
    } else {
      add_link(request, frame, link, false);
    }
  }

  THESEUS_INLINE static void leave(const Request& request, Frame& frame) {
    if ((frame.stop & ~kDone) != 0) return report(request, frame);
    Progress& progress = *request.progress;
    if (add_device(&progress.leaving, 1) + 1 < Tb::count()) return;
    progress.leaving = 0;
    ++progress.launch;
  }

 private:
  THESEUS_INLINE static void report(const Request& request, const Frame& frame) {
    if (frame.stop == kAborted) return;
    const Fault fault = frame.stop & kWrongKernel ? Fault::WrongKernel
                        : frame.stop & kOtherCall ? Fault::OtherCall
                                                  : Fault::WrongLength;
    store_release_system(request.fault, fault_word(fault, Tb::index(), frame.suspect, frame.micro_batch));
  }

  THESEUS_INLINE static void add_source(Frame& frame, const U8* address, I32 link) {
    frame.source[frame.sources] = address;
    frame.link[frame.sources] = link;
    frame.addresses |= reinterpret_cast<U64>(address);
    ++frame.sources;
  }

  THESEUS_INLINE static void set_slot(const Request& request, Frame& frame, const Link& link, U8* slot) {
    frame.place[kSlot] = slot;
    frame.addresses |= reinterpret_cast<U64>(slot);
    if constexpr (kProtocol == Protocol::LL) {
      frame.slot_flag = static_cast<U32>(link.messages + 1);
      frame.slot_sweep = link.messages % kLineSweep < link.slot_count ? link.line_count : 0;
      if (link.messages % kPostedSweep < link.slot_count) {
        store_posted(link.posted + link.slot, posted_word(link.messages, 0, 0));
      }
      send_line(reinterpret_cast<Line*>(slot), frame.slot_flag, {{frame.bytes, request.tag & 0xffff}});
    }
  }
};

}  // namespace theseus::device
