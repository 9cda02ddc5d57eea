// The kernel of transfers: sends and receives that run together, in whatever order they were asked for (kernel_abi.h).
//
// A TB goes round its lanes and moves the next message of whichever can move: its slot is free, or it has arrived.
// Nobody waits for one lane while another could go on, so what a group asks for cannot wait for itself, however few TBs
// there are. An instruction has the three parts that stand at the head of primitives.cuh.
#pragma once

#include "device/flags.cuh"
#include "device/frame.cuh"
#include "device/ll.cuh"

namespace theseus::device {

inline constexpr U32 kHeadBytes = sizeof(TransferHead);
inline constexpr U32 kHeadLines = kHeadBytes / kLineData;

enum class Carrier : U32 { Memory, ToLines, FromLines };

// What the leading thread tells the others about the message that moves.
struct TransferJob {
  const U8* from;  // memory, or lines: those of the data alone
  U8* to;
  U32 bytes;  // of data
  Carrier carrier;
  U32 flag;    // of lines
  U32 sweep;   // ToLines: up to which line behind those of the data the slot is written; 0: none
  U32 stop;    // as in Frame
  U32 broken;  // likewise
  const U32* abort;
  // For the leading thread alone.
  U32 lane;
  U32 message_bytes;
};

// ---- Moving the data ----

struct Vectors {
  using Held = Vector;
  static constexpr U32 kBytes = kVectorBytes;
  THESEUS_INLINE static Held load(const U8* at) {
    Held held;
#if defined(__CUDACC__)
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(held.word[0]), "=r"(held.word[1]), "=r"(held.word[2]), "=r"(held.word[3])
                 : "l"(__cvta_generic_to_global(at))
                 : "memory");
#else
    __builtin_memcpy(&held, __builtin_assume_aligned(at, kVectorBytes), sizeof held);
#endif
    return held;
  }
  THESEUS_INLINE static void store(U8* at, const Held& held) {
#if defined(__CUDACC__)
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(at)), "r"(held.word[0]),
                 "r"(held.word[1]), "r"(held.word[2]), "r"(held.word[3])
                 : "memory");
#else
    __builtin_memcpy(__builtin_assume_aligned(at, kVectorBytes), &held, sizeof held);
#endif
  }
};

template <class Word>
struct Words {
  using Held = Word;
  static constexpr U32 kBytes = sizeof(Word);
  THESEUS_INLINE static Held load(const U8* at) { return *reinterpret_cast<const Word*>(at); }
  THESEUS_INLINE static void store(U8* at, Held held) { *reinterpret_cast<Word*>(at) = held; }
};

// From `at` on, as far as whole units go; returns how far that is.
template <class Unit>
THESEUS_INLINE U32 copy_units(const TransferJob& job, U64 bits, U32 at) {
  constexpr int kUnits = 4;  // in flight at once, to cover the latency of memory
  if (bits % Unit::kBytes != 0) return at;
  const U32 end = job.bytes / Unit::kBytes * Unit::kBytes;
  const U32 stride = Tb::threads() * Unit::kBytes;
  U32 i = at + Tb::thread() * Unit::kBytes;
  THESEUS_ROLL
  for (; i + (kUnits - 1) * stride < end; i += kUnits * stride) {
    typename Unit::Held held[kUnits];
    THESEUS_UNROLL
    for (int unit = 0; unit < kUnits; ++unit) held[unit] = Unit::load(job.from + i + unit * stride);
    THESEUS_UNROLL
    for (int unit = 0; unit < kUnits; ++unit) Unit::store(job.to + i + unit * stride, held[unit]);
  }
  THESEUS_ROLL
  for (; i < end; i += stride) Unit::store(job.to + i, Unit::load(job.from + i));
  return end;
}

// The widest units that both addresses allow, then narrower ones for what is left.
THESEUS_INLINE void copy_memory(const TransferJob& job) {
  const U64 bits = reinterpret_cast<U64>(job.from) | reinterpret_cast<U64>(job.to);
  U32 at = copy_units<Vectors>(job, bits, 0);
  at = copy_units<Words<U64>>(job, bits, at);
  at = copy_units<Words<U32>>(job, bits, at);
  at = copy_units<Words<U16>>(job, bits, at);
  copy_units<Words<U8>>(job, bits, at);
}

THESEUS_INLINE void copy_to_lines(const TransferJob& job) {
  Line* const lines = reinterpret_cast<Line*>(job.to);
  THESEUS_ROLL
  for (U32 at = Tb::thread() * kLineData; at < job.bytes; at += Tb::threads() * kLineData) {
    LinePack pack = {};
    THESEUS_UNROLL
    for (U32 i = 0; i < kLineData; ++i) {
      if (at + i < job.bytes) pack.word[i / 4] |= static_cast<U32>(job.from[at + i]) << (i % 4 * 8);
    }
    send_line(lines + at / kLineData, job.flag, pack);
  }
  THESEUS_ROLL
  for (U32 line = (job.bytes + kLineData - 1) / kLineData + Tb::thread(); line < job.sweep; line += Tb::threads()) {
    send_line(lines + line, job.flag, {});
  }
}

THESEUS_INLINE void copy_from_lines(TransferJob& job) {
  const Line* const lines = reinterpret_cast<const Line*>(job.from);
  THESEUS_ROLL
  for (U32 at = Tb::thread() * kLineData; at < job.bytes; at += Tb::threads() * kLineData) {
    const Received received = receive_line(lines + at / kLineData, job.flag, job.abort);
    if (received.given_up != 0) return raise(&job.broken);
    THESEUS_UNROLL
    for (U32 i = 0; i < kLineData; ++i) {
      if (at + i < job.bytes) job.to[at + i] = static_cast<U8>(received.pack.word[i / 4] >> (i % 4 * 8));
    }
  }
}

// ---- What the leading thread does before and after ----

struct TransferLeader {
  // Where a message stands among the bytes of its transfer, head included, and how many of them it carries.
  struct Span {
    U64 begin;
    U32 bytes;
  };

  THESEUS_INLINE static const TransferLane& lane_of(const TransferRequest& request, U32 lane) {
    return request.lanes != nullptr ? request.lanes[lane] : request.few_lanes[lane];
  }
  THESEUS_INLINE static const Transfer& transfer_of(const TransferRequest& request, U32 transfer) {
    return request.lanes != nullptr ? request.transfers[transfer] : request.few_transfers[transfer];
  }

  THESEUS_CALL static void enter(const TransferRequest& request, TransferJob& job) {
    job.stop = 0;
    job.broken = 0;
    job.abort = request.abort;
    job.lane = Tb::index();
    THESEUS_ROLL
    for (U32 i = Tb::index(); i < request.lane_count; i += Tb::count()) {
      const TransferLane& lane = lane_of(request, i);
      request.cursors[i] = {lane.way, lane.first, 0};
      skip(request, lane, request.cursors[i]);
    }
  }

  // Fills the job with a message that can move, or says that there is none left.
  THESEUS_CALL static void prepare(const TransferRequest& request, TransferJob& job) {
    THESEUS_ROLL
    for (U32 turns = 0;;) {
      bool open = false;
      THESEUS_ROLL
      for (U32 i = Tb::index(); i < request.lane_count; i += Tb::count()) {
        job.lane = job.lane + Tb::count() < request.lane_count ? job.lane + Tb::count() : Tb::index();
        const TransferLane& lane = lane_of(request, job.lane);
        const TransferCursor& cursor = request.cursors[job.lane];
        if (cursor.transfer == lane.end) continue;
        open = true;
        const Transfer& transfer = transfer_of(request, cursor.transfer);
        const bool ready = lane.sends != 0 ? prepare_send(job, *lane.link, transfer, cursor.message)
                                           : prepare_recv(request, job, *lane.link, transfer, cursor.message);
        if (ready || job.stop != 0) return;
      }
      if (!open) {
        job.stop = kDone;
        return;
      }
      if (gives_up(turns, job.abort)) {
        job.stop = 1;
        return;
      }
    }
  }

  // The data has moved.
  THESEUS_CALL static void finish(const TransferRequest& request, const TransferJob& job) {
    const TransferLane& lane = lane_of(request, job.lane);
    TransferCursor& cursor = request.cursors[job.lane];
    Link& link = *lane.link;
    const U64 number = link.messages + 1;
    if (lane.sends == 0) {
      store_taken(link.taken, number);
    } else if (job.carrier == Carrier::Memory) {
      store_posted(link.posted + link.slot, posted_word(number, tag_of(cursor.message), job.message_bytes));
    }
    link.messages = number;
    link.slot = link.slot + 1 == link.slot_count ? 0 : link.slot + 1;
    cursor.message += transfer_of(request, cursor.transfer).ways;
    skip(request, lane, cursor);
  }

 private:
  THESEUS_INLINE static U32 tag_of(U64 message) { return static_cast<U32>(message & 0xffff); }

  THESEUS_INLINE static Span span_of(const Link& link, const Transfer& transfer, U64 message) {
    const U64 begin = message * link.slot_bytes;
    const U64 left = kHeadBytes + transfer.bytes - begin;
    return {begin, left < link.slot_bytes ? static_cast<U32>(left) : link.slot_bytes};
  }

  // To the next transfer that has a message on this lane, from one that has none left.
  THESEUS_INLINE static void skip(const TransferRequest& request, const TransferLane& lane, TransferCursor& cursor) {
    THESEUS_ROLL
    while (cursor.transfer < lane.end) {
      const Transfer& transfer = transfer_of(request, cursor.transfer);
      if (lane.way < transfer.ways && cursor.message * lane.link->slot_bytes < kHeadBytes + transfer.bytes) return;
      ++cursor.transfer;
      cursor.message = lane.way;
    }
  }

  // Where the data of a message lies in the caller's buffer; the first message has the head before it.
  THESEUS_INLINE static U8* data_at(const Transfer& transfer, const Span& span) {
    return transfer.data + (span.begin == 0 ? 0 : span.begin - kHeadBytes);
  }

  THESEUS_INLINE static void carry(TransferJob& job, Carrier carrier, const U8* from, U8* to, const Span& span) {
    job.carrier = carrier;
    job.from = from;
    job.to = to;
    job.bytes = span.bytes - (span.begin == 0 ? kHeadBytes : 0);
    job.message_bytes = span.bytes;
  }

  THESEUS_INLINE static Line* lines_of(const Link& link) {
    return reinterpret_cast<Line*>(link.lines) + static_cast<U64>(link.slot) * link.line_count;
  }

  THESEUS_INLINE static bool prepare_send(TransferJob& job, const Link& link, const Transfer& transfer, U64 message) {
    // The acquire of `taken`, and below of `posted`: see flags.cuh.
    if (load_acquire_system(link.taken) + link.slot_count < link.messages + 1) return false;
    const U64 number = link.messages + 1;
    const U32 flag = static_cast<U32>(number);
    const Span span = span_of(link, transfer, message);
    if (link.line_count > 0 && kHeadBytes + transfer.bytes <= longest_ll_message(link.line_count)) {
      Line* const lines = lines_of(link);
      if (link.messages % kPostedSweep < link.slot_count) {
        store_posted(link.posted + link.slot, posted_word(number - 1, 0, 0));
      }
      job.flag = flag;
      job.sweep = link.messages % kLineSweep < link.slot_count ? link.line_count - 1 - kHeadLines : 0;
      send_line(lines, flag, {{span.bytes, tag_of(message)}});
      const TransferHead& head = transfer.head;
      send_line(lines + 1, flag, {{static_cast<U32>(head.count), static_cast<U32>(head.count >> 32)}});
      send_line(lines + 2, flag, {{head.request, packed(head)}});
      carry(job, Carrier::ToLines, transfer.data, reinterpret_cast<U8*>(lines + 1 + kHeadLines), span);
      return true;
    }
    U8* const slot = link.slots + static_cast<U64>(link.slot) * link.slot_bytes;
    // What lines bear comes round as well; the number before is not of this slot.
    if (link.line_count > 0 && link.messages % kLineSweep < link.slot_count && link.messages >= link.slot_count) {
      THESEUS_ROLL
      for (U32 line = 0; line < link.line_count; ++line) send_line(lines_of(link) + line, flag - 1, {});
    }
    if (span.begin == 0) *reinterpret_cast<TransferHead*>(slot) = transfer.head;
    carry(job, Carrier::Memory, data_at(transfer, span), slot + (span.begin == 0 ? kHeadBytes : 0), span);
    return true;
  }

  THESEUS_INLINE static bool prepare_recv(const TransferRequest& request, TransferJob& job, const Link& link,
                                          const Transfer& transfer, U64 message) {
    const U64 number = link.messages + 1;
    const Span span = span_of(link, transfer, message);
    const U64 posted = load_acquire_system(link.posted + link.slot);
    if (posted >> 48 == (number & 0xffff)) {
      const U8* const slot = link.slots + static_cast<U64>(link.slot) * link.slot_bytes;
      if (span.begin == 0 && !matches(request, job, transfer.head, *reinterpret_cast<const TransferHead*>(slot))) {
        return false;
      }
      if (posted != posted_word(number, tag_of(message), span.bytes)) return fail(request, job, Fault::WrongLength);
      carry(job, Carrier::Memory, slot + (span.begin == 0 ? kHeadBytes : 0), data_at(transfer, span), span);
      return true;
    }
    if (link.line_count == 0 || span.begin != 0) return false;
    const Line* const lines = lines_of(link);
    const U32 flag = static_cast<U32>(number);
    const Line first = load_line(lines);
    if (static_cast<U32>(first.low >> 32) != flag || static_cast<U32>(first.high >> 32) != flag) return false;
    const Received counts = receive_line(lines + 1, flag, job.abort);
    const Received rest = receive_line(lines + 2, flag, job.abort);
    if ((counts.given_up | rest.given_up) != 0) {
      job.stop = 1;
      return false;
    }
    if (!matches(request, job, transfer.head, unpacked(counts.pack, rest.pack))) return false;
    if (static_cast<U32>(first.low) != span.bytes) return fail(request, job, Fault::WrongLength);
    job.flag = flag;
    carry(job, Carrier::FromLines, reinterpret_cast<const U8*>(lines + 1 + kHeadLines), transfer.data, span);
    return true;
  }

  THESEUS_INLINE static U32 packed(const TransferHead& head) {
    return static_cast<U32>(head.type) | static_cast<U32>(head.collective) << 8 | static_cast<U32>(head.rank) << 16;
  }
  THESEUS_INLINE static TransferHead unpacked(const LinePack& counts, const LinePack& rest) {
    return {static_cast<U64>(counts.word[1]) << 32 | counts.word[0], rest.word[0],
            static_cast<Type>(rest.word[1] & 0xff), static_cast<U8>(rest.word[1] >> 8),
            static_cast<U16>(rest.word[1] >> 16)};
  }

  THESEUS_INLINE static bool matches(const TransferRequest& request, TransferJob& job, const TransferHead& own,
                                     const TransferHead& other) {
    if (own.count == other.count && own.request == other.request && own.type == other.type &&
        own.collective == other.collective) {
      return true;
    }
    request.found[Tb::index()] = {own, other};
    return fail(request, job, Fault::OtherTransfer);
  }

  // The message that failed is told by `found`, or not at all.
  THESEUS_CALL static bool fail(const TransferRequest& request, TransferJob& job, Fault fault) {
    job.stop = 1;
    store_release_system(request.fault, fault_word(fault, Tb::index(), kNoLink, 0));
    return false;
  }
};

THESEUS_INLINE void transfer(const TransferRequest& request, TransferJob& job) {
  if (Tb::leads()) TransferLeader::enter(request, job);
  THESEUS_ROLL
  for (;;) {
    if (Tb::leads()) TransferLeader::prepare(request, job);
    Tb::barrier();
    if (job.stop != 0) return;
    switch (job.carrier) {
      case Carrier::Memory: copy_memory(job); break;
      case Carrier::ToLines: copy_to_lines(job); break;
      case Carrier::FromLines: copy_from_lines(job); break;
    }
    Tb::barrier();
    if (job.broken != 0) return;
    if (Tb::leads()) TransferLeader::finish(request, job);
  }
}

}  // namespace theseus::device
