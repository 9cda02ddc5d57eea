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

struct Range {
  U64 offset;  // elements
  U32 length;
};

THESEUS_INLINE void clear(Frame& frame) {
  frame.sources = 0;
  frame.scaled = 0;
  frame.target = nullptr;
  frame.slot = nullptr;
  frame.send = kNoLink;
  frame.slot_sweep = 0;
  frame.measured = 0;
  frame.bytes = 0;
}

THESEUS_CALL inline void fail(const Request& request, Frame& frame, Fault fault, I32 link) {
  frame.stop = 1;
  store_release_system(request.fault, fault_word(fault, Tb::index(), link, frame.micro_batch));
}

template <class Ready>
THESEUS_INLINE void poll(Frame& frame, Ready ready) {
  THESEUS_ROLL
  for (U32 turns = 0; !ready();) {
    if (gives_up(turns, frame.abort)) {
      frame.stop = 1;
      return;
    }
  }
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
    frame.stop = 0;
    frame.broken = 0;
    frame.factor = 0;
    frame.micro_batch = 0;
    frame.abort = request.abort;
    frame.launched = request.progress->launch << kLaunchShift;
    if (request.type != Numbers::kType || request.reduction != Numbers::kReduction || request.protocol != kProtocol ||
        (!kScaling && request.scaling != Scaling::None)) {
      return fail(request, frame, Fault::WrongKernel, kNoLink);
    }
    if (request.scaling == Scaling::Immediate) frame.factor = request.scalar;
    if (request.scaling == Scaling::Pointed) {
      frame.factor = load_element<Code>(static_cast<const U8*>(request.scalar_at));
    }
  }

  THESEUS_INLINE static void wait(const Request& request, Frame& frame, U32 block, U32 distance, U32 before, U32 width,
                                  U32 place) {
    if (frame.stop != 0 || distance > frame.micro_batch) return;
    const U64* const counter = request.progress->finished + block * kFinishedStride;
    const U64 needed = instructions(request, frame, before, frame.micro_batch - distance, width, place);
    poll(frame, [&] { return load_finished(counter) >= needed; });
  }

  // The next message of a connection is a source.
  THESEUS_CALL static void add_message(const Request& request, Frame& frame, I32 index) {
    if (frame.stop != 0) return;
    const Link& link = *request.links[index];
    const U64 number = link.messages + 1;
    const U32 source = frame.sources++;
    U32 tag = 0;
    U32 bytes = 0;
    U32 room = link.slot_bytes;
    frame.link[source] = index;
    if constexpr (kProtocol == Protocol::LL) {
      const Line* const lines =
          reinterpret_cast<const Line*>(link.lines) + static_cast<U64>(link.slot) * link.line_count;
      LinePack header = {};
      if (!receive_line(lines, static_cast<U32>(number), frame.abort, header)) frame.stop = 1;
      frame.source[source] = reinterpret_cast<const U8*>(lines);
      frame.flag[source] = static_cast<U32>(number);
      bytes = header.word[0];
      tag = header.word[1];
      room = longest_ll_message(link.line_count);
    } else {
      const U64* const word = link.posted + link.slot;
      U64 posted = 0;
      poll(frame, [&] { return (posted = load_posted(word)) >> 48 == (number & 0xffff); });
      frame.source[source] = link.slots + static_cast<U64>(link.slot) * link.slot_bytes;
      bytes = static_cast<U32>(posted);
      tag = static_cast<U32>(posted >> 32) & 0xffff;
    }
    if (frame.stop != 0) return;
    if (tag != (request.tag & 0xffff)) return fail(request, frame, Fault::OtherCall, index);
    if (bytes > room || bytes > request.piece * kElement || (frame.measured != 0 && bytes != frame.bytes)) {
      return fail(request, frame, Fault::WrongLength, index);
    }
    frame.bytes = bytes;
    frame.measured = 1;
  }

  // Local memory is a source. The first one of an instruction without messages says how long it is.
  THESEUS_CALL static void add_local(const Request& request, Frame& frame, Space space, I32 block, I32 piece) {
    if (frame.stop != 0) return;
    const Range range = range_of(request, frame, space, block, piece);
    const U32 bytes = range.length * kElement;
    if (frame.measured != 0 && space != Space::Scratch && bytes != frame.bytes) {
      return fail(request, frame, Fault::WrongLength, frame.link[frame.sources - 1]);
    }
    if (frame.sources == 0) frame.bytes = bytes;
    frame.link[frame.sources] = kNoLink;
    frame.source[frame.sources++] = address(request, space, piece, range.offset);
    if (kScaling && request.scaling != Scaling::None && space == Space::Input) frame.scaled = frame.sources;
  }

  THESEUS_INLINE static void set_target(const Request& request, Frame& frame, Space space, I32 block, I32 piece) {
    if (frame.stop != 0) return;
    const Range range = range_of(request, frame, space, block, piece);
    if (space == Space::Scratch) {
      request.scratch_lengths[scratch_index(request, frame, piece)] = frame.bytes / kElement;
    } else if (frame.measured != 0 && frame.bytes != range.length * kElement) {
      return fail(request, frame, Fault::WrongLength, frame.link[frame.sources - 1]);
    }
    frame.target = address(request, space, piece, range.offset);
    // A copy to where it lies already, as in a call in place.
    if (frame.sources == 1 && frame.source[0] == frame.target && frame.scaled == 0) frame.bytes = 0;
  }

  THESEUS_INLINE static void set_slot(const Request& request, Frame& frame, I32 index) {
    if (frame.stop != 0) return;
    const Link& link = *request.links[index];
    const U64 number = link.messages + 1;
    const U32 room = kProtocol == Protocol::LL ? longest_ll_message(link.line_count) : link.slot_bytes;
    if (frame.bytes > room) return fail(request, frame, Fault::WrongLength, index);
    const U64* const taken = link.taken;
    const U64 slots = link.slot_count;
    poll(frame, [&] { return load_taken(taken) + slots >= number; });
    if (frame.stop != 0) return;
    frame.send = index;
    if constexpr (kProtocol == Protocol::LL) {
      Line* const lines = reinterpret_cast<Line*>(link.lines) + static_cast<U64>(link.slot) * link.line_count;
      frame.slot = reinterpret_cast<U8*>(lines);
      frame.slot_flag = static_cast<U32>(number);
      frame.slot_sweep = link.messages % kLineSweep < slots ? link.line_count : 0;
      send_line(lines, frame.slot_flag, {{frame.bytes, request.tag & 0xffff}});
    } else {
      frame.slot = link.slots + static_cast<U64>(link.slot) * link.slot_bytes;
    }
  }

  // The data has moved: the message that leaves is in its slot, and those that arrived have been read.
  THESEUS_INLINE static void finish(const Request& request, Frame& frame) {
    if (frame.send != kNoLink) {
      Link& link = *request.links[frame.send];
      if constexpr (kProtocol == Protocol::Simple) {
        store_posted(link.posted + link.slot, posted_word(link.messages + 1, request.tag, frame.bytes));
      }
      count(link);
    }
    THESEUS_ROLL
    for (U32 source = 0; source < frame.sources; ++source) {
      if (frame.link[source] == kNoLink) continue;
      Link& link = *request.links[frame.link[source]];
      store_taken(link.taken, link.messages + 1);
      count(link);
    }
    clear(frame);
  }

  THESEUS_INLINE static void signal(const Request& request, const Frame& frame, U32 before, U32 width, U32 place) {
    store_finished(request.progress->finished + Tb::index() * kFinishedStride,
                   instructions(request, frame, before, frame.micro_batch, width, place));
  }

  // The same for all threads to call, of which one does it.
  THESEUS_CALL static void wait_if_leading(const Request& request, Frame& frame, U32 block, U32 distance, U32 before,
                                           U32 width, U32 place) {
    if (Tb::leads()) wait(request, frame, block, distance, before, width, place);
  }
  THESEUS_CALL static void signal_if_leading(const Request& request, Frame& frame, U32 before, U32 width, U32 place) {
    if (Tb::leads()) signal(request, frame, before, width, place);
  }
  THESEUS_CALL static void add_if_leading(const Request& request, Frame& frame, I32 link, Space space, I32 block,
                                          I32 piece) {
    if (!Tb::leads()) return;
    if (link == kLocalOperand) {
      add_local(request, frame, space, block, piece);
    } else {
      add_message(request, frame, link);
    }
  }

  THESEUS_INLINE static void leave(const Request& request) {
    Progress& progress = *request.progress;
    if (add_device(&progress.leaving, 1) + 1 < Tb::count()) return;
    progress.leaving = 0;
    ++progress.launch;
  }

 private:
  THESEUS_INLINE static U32 scratch_index(const Request& request, const Frame& frame, I32 index) {
    return static_cast<U32>(index) * request.scratch_rounds + (request.scratch_rounds > 1 ? frame.micro_batch : 0);
  }

  THESEUS_CALL static Range range_of(const Request& request, const Frame& frame, Space space, I32 block, I32 index) {
    const U64 piece = static_cast<U64>(index);
    const U64 skipped = static_cast<U64>(frame.micro_batch) * request.piece;
    if (space == Space::Scratch) {
      return {request.scratch_rounds > 1 ? skipped : 0, request.scratch_lengths[scratch_index(request, frame, index)]};
    }
    const U64 length = request.chunk + (piece < request.longer ? 1 : 0);
    const U64 start = static_cast<U64>(block) * request.count + piece * request.chunk +
                      (piece < request.longer ? piece : request.longer);
    if (skipped >= length) return {start + length, 0};
    const U64 left = length - skipped;
    return {start + skipped, left < request.piece ? static_cast<U32>(left) : request.piece};
  }

  THESEUS_INLINE static U8* address(const Request& request, Space space, I32 index, U64 offset) {
    switch (space) {
      case Space::Input: return static_cast<U8*>(const_cast<void*>(request.input)) + offset * kElement;
      case Space::Output: return static_cast<U8*>(request.output) + offset * kElement;
      default: return request.scratch + static_cast<U64>(index) * request.scratch_stride + offset * kElement;
    }
  }

  THESEUS_INLINE static void count(Link& link) {
    ++link.messages;
    link.slot = link.slot + 1 == link.slot_count ? 0 : link.slot + 1;
  }
};

}  // namespace theseus::device
