// What the host lays out in memory and kernels read: plain structs, the same for g++, NVRTC and the emulator, so this
// file includes nothing. Names follow schedule/plan.h and executor/shape.h; enumerations have their values.
//
// Memory that a pointer names is device memory of the rank unless it says otherwise, and cleared to zero before the
// first use of it. Several ranks may share a device, or a process; no two ranks share a struct.
#pragma once

// Of what host and device both call.
#if defined(__CUDACC__)
#define THESEUS_BOTH __host__ __device__
#else
#define THESEUS_BOTH
#endif

namespace theseus::device {

using U8 = unsigned char;
using U16 = unsigned short;
using U32 = unsigned int;
using U64 = unsigned long long;
using I32 = int;
static_assert(sizeof(U16) == 2 && sizeof(U32) == 4 && sizeof(U64) == 8 && sizeof(void*) == 8);

// Vectors are this long; slots, lines, scratch and its strides are aligned to it. User buffers need no more than their
// element's alignment.
inline constexpr U32 kVectorBytes = 16;

// ---- Connections ----

// One end of a directed connection. Messages are numbered from 1, in the order of the plan, for as long as the
// connection lives; message n uses slot (n - 1) % slot_count, whichever protocol carries it. Both ends agree on
// slot_count, slot_bytes and line_count. Sender and receiver each have a Link of their own; the memory that its
// pointers name is shared.
//
// Simple protocol: the sender fills a slot, then writes the slot's word in `posted`. The receiver reads the slot, then
// writes `taken`. LL protocol: each line carries 8 bytes of data with a flag beside each half, so that no word is
// posted; `taken` works as before.
struct Link {
  U8* slots;       // receiver's memory: slot_count * slot_bytes
  U64* posted;     // receiver's memory: slot_count words, each a posted_word(); written by the sender
  U64* lines;      // receiver's memory: slot_count * line_count lines of two words; null: no LL
  U64* taken;      // sender's memory: how many messages the receiver is done with; written by the receiver
  U64 messages;    // messages that this end has sent, or taken, so far: kept by the kernels from launch to launch
  U32 slot;        // messages % slot_count, kept beside it: where the next one goes, or comes
  U32 slot_bytes;  // multiple of kVectorBytes, at most 1 GiB; a message of the Simple protocol is at most so long
  U32 slot_count;  // at least 2
  U32 line_count;  // lines of one LL slot, the first of which is a header; see longest_ll_message(); 0: no LL here
};

// A slot's word: which message is there, what it belongs to, how long it is. The number's low bits are enough, as the
// word before is of message number - slot_count.
THESEUS_BOTH constexpr U64 posted_word(U64 number, U32 tag, U32 bytes) {
  return (number & 0xffff) << 48 | static_cast<U64>(tag & 0xffff) << 32 | bytes;
}

// Bytes of an LL line, and of data in it. Each word of a line is data (low half) and flag (high half): the low 32 bits
// of the message's number.
inline constexpr U32 kLineBytes = 16;
inline constexpr U32 kLineData = 8;
THESEUS_BOTH constexpr U32 longest_ll_message(U32 line_count) { return (line_count - 1) * kLineData; }
THESEUS_BOTH constexpr U32 lines_for(U32 message_bytes) { return 1 + (message_bytes + kLineData - 1) / kLineData; }
// LL flags come round after 2^32 messages. So that no older flag survives so long, a sender writes whole slots, not
// only the lines that it needs, for the first slot_count messages of every kLineSweep.
inline constexpr U64 kLineSweep = U64{1} << 30;
// Posted words tell 2^16 messages apart, and kernels look for one that has come as far as the message that is due. LL
// messages write none, so for the first slot_count of every kPostedSweep they write that of the message before: no
// older one survives so long that it seems to be ahead.
inline constexpr U64 kPostedSweep = U64{1} << 14;

enum class Protocol : U8 { Simple, LL };

// Values of theseus::DataType and theseus::RedOp.
enum class Type : U8 {
  Int8,
  Uint8,
  Int32,
  Uint32,
  Int64,
  Uint64,
  Float16,
  Float32,
  Float64,
  Bfloat16,
  Float8e4m3,
  Float8e5m2,
};
enum class Reduction : U8 { Sum, Prod, Max, Min };

// ---- Programs: the flattened form of a RankPlan, for the interpreting kernel ----

// Values of theseus::Opcode and theseus::Buffer.
enum class Op : U8 {
  Nop,
  Send,
  Recv,
  RecvCopySend,
  RecvReduceCopy,
  RecvReduceSend,
  RecvReduceCopySend,
  Copy,
  Reduce,
  Fold,
};
enum class Space : U8 { None, Input, Output, Scratch };

// A Place with its index split: block and piece of Input and Output; of Scratch `piece` is the index, `block` 0.
struct Location {
  Space space;
  U8 reserved[3];
  I32 block;
  I32 piece;
};

// An instruction waits until TB `block` has finished so many of its instructions in this launch:
//   before * micro_batches + (m - distance) * width + place,      m its own micro-batch; nothing where distance > m.
// `before` instructions stand in loops before the one that it waits for, `width` in the same loop; `place` counts from
// 1 in that loop.
struct Wait {
  U32 block;
  U32 distance;
  U32 before;
  U32 width;
  U32 place;
};

struct Step {
  Op op;
  U8 recv_is_left;  // 1: the arriving value is the left operand. No kernel asks: all reductions are commutative to the
                    // bit
  U8 silent;        // 1: no Wait names it, so that its end need not be told
  U8 reserved;
  I32 send;  // index into Request::links; -1: none
  I32 recv;
  Location src;
  Location dst;
  U32 first_wait;  // into Program::waits
  U32 waits;
  U32 first_operand;  // Fold: into Program::operands
  U32 operands;
};
inline constexpr U32 kMostOperands = 64;  // of a Fold, as in executor/program.h
inline constexpr I32 kLocalOperand = -1;  // in Program::operands; others are indices into Request::links

// Steps [first, end) of Program::steps, run for all micro-batches before the next loop begins. LoopOrder::MicroBatches:
// one loop a TB. LoopOrder::SubPipelines: one for each of its sub-pipelines.
struct Loop {
  U32 first;
  U32 end;
};

// Loops [first, end) of Program::loops.
struct Block {
  U32 first;
  U32 end;
};

struct Program {
  const Block* blocks;  // one for each TB: the launch's grid
  const Loop* loops;
  const Step* steps;
  const Wait* waits;
  const I32* operands;
};

// ---- Requests ----

// How far the TBs of a rank are. One for each communicator, used by one launch after the other, whatever their plans.
// `launch` is raised by the last TB to leave a launch, so all TBs of a launch see the same; finished counts a TB's
// instructions in its low kLaunchShift bits, the launch above them, and so never falls from launch to launch.
struct Progress {
  U64 launch;
  U64 leaving;    // TBs that have left the launch under way; the last one clears it
  U64* finished;  // kFinishedStride words for each TB of the largest grid
};
inline constexpr U32 kFinishedStride = 4;  // a sector of the L2 cache each
inline constexpr U32 kLaunchShift = 40;

enum class Scaling : U8 {
  None,
  Immediate,  // by Request::scalar
  Pointed,    // by the element at Request::scalar_at, read when the kernel runs
};

// What a kernel takes, by value: one request of a rank. All TBs of a launch must be able to run at once.
// Lengths are in elements of the type that the kernel was made for, unless they say bytes; see Shape.
struct Request {
  const void* input;
  void* output;
  U8* scratch;             // of the communicator
  U32* scratch_lengths;    // scratch indices * scratch_rounds: elements that lie there; no need to clear them
  Link* const* links;      // by index of RankPlan::connections
  const Program* program;  // null: the kernel holds the plan itself
  Progress* progress;
  const U32* abort;  // pinned host memory: not zero: leave as soon as possible
  U64* fault;        // pinned host memory: a fault_word() where something is wrong; 0: nothing
  U64 count;         // of one block
  U64 chunk;         // count / pieces
  U32 longer;        // count % pieces: the first so many pieces of a block have one element more
  U32 piece;         // of a full micro-batch of one chunk: at most what a message may hold, in bytes best a multiple of
                     // kVectorBytes
  U32 micro_batches;
  U32 scratch_rounds;  // micro-batches that a Scratch index holds: 1, or micro_batches (LoopOrder::SubPipelines)
  U64 scratch_stride;  // bytes of one index, a multiple of kVectorBytes
  U64 scalar;          // Scaling::Immediate: one element, in the low bytes
  const void* scalar_at;
  U32 tag;          // 16 bits of the request's signature: messages of another one are a fault
  Scaling scaling;  // of what is read from Input
  Type type;        // these three: what the kernel must have been made for; others are a fault
  Reduction reduction;
  Protocol protocol;
};

// What went wrong first, as far as a kernel sees. After a fault, or an abort, all TBs of the launch leave, with
// messages and counters in no known state: the communicator has failed.
enum class Fault : U8 {
  None,
  WrongKernel,    // made for another type, reduction or protocol than the request
  OtherCall,      // a message of another request: its tag differs
  WrongLength,    // a message of a length that the plan does not expect, or that no slot could hold
  OtherTransfer,  // of transfers: a message of another one; TransferRequest::found says which
};
THESEUS_BOTH constexpr U64 fault_word(Fault fault, U32 block, I32 link, U32 micro_batch) {
  return static_cast<U64>(fault) << 56 | static_cast<U64>(block & 0xffff) << 40 |
         static_cast<U64>(static_cast<U32>(link) & 0xffff) << 24 | (micro_batch & 0xffffff);
}
THESEUS_BOTH constexpr Fault fault_of(U64 word) { return static_cast<Fault>(word >> 56); }
THESEUS_BOTH constexpr U32 fault_block(U64 word) { return word >> 40 & 0xffff; }
// Index into Request::links; 0xffff: none.
THESEUS_BOTH constexpr U32 fault_link(U64 word) { return word >> 24 & 0xffff; }

// The end of an integer Avg, in a launch of its own behind the collective: data[i] /= ranks, truncating towards zero.
struct Division {
  void* data;
  U64 count;  // elements
  I32 ranks;  // at least 1
};

// ---- Transfers: sends and receives of a group, and all-to-all with uneven splits ----
//
// A transfer is its head and its data behind that, cut into messages of one slot each; one of no bytes is a head alone.
// So a transfer of other size or type than the receiver's is found out by its first message. The messages are dealt to
// `ways` links in turn. What fits into one LL message goes as such; the receiver takes either protocol.

// What both ends must agree on (executor/cuda_transfer.h), and who says so.
struct TransferHead {
  U64 count;  // elements
  U32 request;
  Type type;
  U8 collective;
  U16 rank;  // the sender's; not compared
};
static_assert(sizeof(TransferHead) == kVectorBytes);

struct Transfer {
  U8* data;  // the sender's is only read
  U64 bytes;
  TransferHead head;  // at the receiver: what it expects, and its own rank
  U32 ways;           // at least 1; equal at both ends
  U32 reserved;
};

// Transfers [first, end) of one peer and direction, in order; of each the messages whose number in the transfer, modulo
// its ways, is `way`. No two lanes have one link.
struct TransferLane {
  Link* link;
  U32 first;
  U32 end;
  U32 way;
  U32 sends;  // 1: they leave; 0: they arrive
};

// How far a lane is.
struct TransferCursor {
  U64 message;  // of the transfer
  U32 transfer;
  U32 reserved;
};

struct TransferMismatch {
  TransferHead own;
  TransferHead other;
};

// What the kernel of transfers takes, by value. A TB serves lanes b, b + grid, b + 2 * grid, ... and never waits for
// one of them while another could move, so that any grid will do.
inline constexpr U32 kFewLanes = 32;
inline constexpr U32 kFewTransfers = 32;
struct TransferRequest {
  const TransferLane* lanes;  // pinned host memory; null: few_lanes and few_transfers are all
  const Transfer* transfers;  // likewise
  TransferCursor* cursors;    // one for each lane; no need to clear them
  const U32* abort;           // as in Request
  U64* fault;                 // likewise; its link means nothing
  TransferMismatch* found;    // pinned host memory, one for each TB: what Fault::OtherTransfer is about
  U32 lane_count;
  U32 reserved;
  TransferLane few_lanes[kFewLanes];
  Transfer few_transfers[kFewTransfers];
};

}  // namespace theseus::device
