// A plan: the compiled form of an algorithm, as data. An executor runs it, the verifier proves it.
//
// Every rank has thread blocks (TBs); a TB is a list of instructions, run for every micro-batch in the order that
// Plan::loop names. Executors on the host run TBs as resumable programs, executors on a GPU as thread blocks.
// Micro-batch m covers elements
// [m*S, (m+1)*S) of every chunk, where S is what one slot holds; pieces of shorter chunks may be empty, and still move
// (as headers), so that both ends of a connection always count alike.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace theseus {

enum class Opcode : uint8_t {
  Nop,                 // only waits for its dependencies
  Send,                // local(src) -> connection
  Recv,                // connection -> local(dst)
  RecvCopySend,        // connection -> local(dst) and -> next connection
  RecvReduceCopy,      // local(src) op connection -> local(dst)
  RecvReduceSend,      // local(src) op connection -> next connection
  RecvReduceCopySend,  // local(src) op connection -> local(dst) and -> next connection
  Copy,                // local(src) -> local(dst)
  Reduce,              // local(dst) op local(src) -> local(dst)
  Fold,                // several connections and local(src), in the order of `fold` -> local(dst)
};
inline constexpr int kOpcodes = 10;

enum class Buffer : uint8_t { None, Input, Output, Scratch };

// A place in a rank's memory: chunk `index` of a buffer. Input and Output are cut into blocks of `count` elements and
// blocks into Plan::chunks_per_block balanced pieces; index = block * chunks_per_block + piece. A Scratch index holds
// one micro-batch of one chunk and nothing longer-lived (LoopOrder::SubPipelines: one chunk).
struct Place {
  Buffer buffer = Buffer::None;
  int32_t index = 0;
};

// Waits until TB `tb` of the same rank has finished its instruction `step` of micro-batch (m - distance).
struct Dependency {
  int16_t tb;
  int16_t distance = 0;  // 1: the previous micro-batch (write after read of scratch)
  int32_t step;
};

// Input of an instruction is scaled first where the request has a per-rank factor (PreMulSum, floating Avg): whatever
// is read from Buffer::Input counts as input.
struct Instruction {
  Opcode opcode = Opcode::Nop;
  // True: the arriving value is the left operand of the reduction, local(src) the right one.
  bool recv_is_left = false;
  int16_t recv = -1;  // index into RankPlan::connections (Recv*, RecvReduce*)
  int16_t send = -1;  // index into RankPlan::connections (Send, *Send)
  Place src;
  Place dst;
  // Which sub-pipeline of the schedule it belongs to; counts from 0, the same on all ranks, and never falls along a TB.
  int32_t sub_pipeline = 0;
  // Fold: operands in order of reduction; a connection's index, or kLocalOperand for local(src).
  std::vector<int16_t> fold;
  std::vector<Dependency> dependencies;
};
inline constexpr int16_t kLocalOperand = -1;

// One end of a directed connection of this rank.
struct Connection {
  int32_t peer;
  bool outgoing;  // true: this rank sends
  int16_t rail = 0;
  int16_t channel = 0;  // several FIFOs between the same pair; 0 for the built-in algorithms
};

// The order in which a TB runs its instructions over n micro-batches.
enum class LoopOrder : uint8_t {
  MicroBatches,  // all instructions for micro-batch 0, all for micro-batch 1, ...
  // The instructions of its first sub-pipeline for micro-batches 0 to n - 1, then those of its second, ...: a TB
  // repeats one primitive (ResCCL, section 3.2). Scratch then holds whole chunks, not one micro-batch of them.
  SubPipelines,
};
inline constexpr int kLoopOrders = 2;

struct ThreadBlock {
  std::vector<Instruction> instructions;
};

struct RankPlan {
  int rank = 0;
  std::vector<Connection> connections;
  std::vector<ThreadBlock> thread_blocks;
  int scratch_chunks = 0;  // how many Scratch indices are used
};

struct Plan {
  std::string name;  // of the algorithm, with its arguments: "ring", "hierarchical(4x4)"
  Collective collective = Collective::AllReduce;
  int ranks = 1;
  int root = 0;
  int chunks_per_block = 1;  // pieces that `count` elements are cut into
  // True where the plan ends with zero slots as well, i.e. every Send may wait until its receiver has taken the data.
  // Then an executor may pass references to the user's buffers instead of copies.
  bool rendezvous_safe = false;
  LoopOrder loop = LoopOrder::MicroBatches;
  std::vector<RankPlan> rank_plans;  // all ranks, or only those that were lowered
};

// Total number of pieces of the Input / Output space (0 where the rank has none), e.g. AllGather: Input has
// chunks_per_block pieces, Output ranks * chunks_per_block.
struct BufferShape {
  int input_blocks;
  int output_blocks;
};
// `rank` matters for rooted collectives: off-root Broadcast input is 0 blocks, off-root Reduce output is 0 blocks, ...
BufferShape buffer_shape(Collective collective, int ranks, int root, int rank);

// The same cell under two names when the call is in place; {None, 0} if `place` has no twin.
// AllReduce/Broadcast/Reduce: Input[i] == Output[i]. AllGather/Gather: Input[i] == Output[rank*k + i].
// ReduceScatter/Scatter: Output[i] == Input[rank*k + i]. AllToAll has no in-place form.
Place in_place_twin(Collective collective, int ranks, int root, int rank, int chunks_per_block, Place place);

// 64-bit digest over every field; the same on every machine. What peers compare.
uint64_t digest(const Plan& plan);

// The flat, versioned, little-endian plan file with a checksum and one section per rank (offsets in the head), so that
// a rank reads only its own. parse_plan checks magic, version, checksum, every size and every index before use.
std::string serialize(const Plan& plan);
Result<Plan> parse_plan(const std::string& bytes);
// Only the head and the section of `rank`.
Result<Plan> parse_plan_of_rank(const std::string& bytes, int rank);

}  // namespace theseus
