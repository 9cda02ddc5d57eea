// A rank's part of a plan, resolved to ports: what the host executor runs.
//
// Its thread blocks are shared between programs: of a schedule that replaces another only those that differ are made.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "executor/synchronisation.h"
#include "resource/builder.h"
#include "schedule/plan.h"
#include "transport/port.h"

namespace theseus {

// Where connections come from. Ports live as long as the source.
class PortSource {
 public:
  virtual ~PortSource() = default;
  virtual Result<SendPort*> send_port(int peer, int rail, int channel) = 0;
  virtual Result<RecvPort*> recv_port(int peer, int rail, int channel) = 0;
};

// Longest Fold; Program::build refuses longer ones.
inline constexpr size_t kMostOperands = 64;

// A Place with its index split into block and piece.
struct Location {
  Buffer buffer = Buffer::None;
  int32_t block = 0;
  int32_t piece = 0;  // Scratch: the index
  bool operator==(const Location&) const = default;
};

struct Step {
  Opcode opcode = Opcode::Nop;
  bool recv_is_left = false;
  SendPort* send = nullptr;
  RecvPort* recv = nullptr;
  Location src;
  Location dst;
  int32_t copies = -1;              // Send: index of the group of sends that carry the same data, if there are several
  uint32_t loop_end = 0;            // where, in its block, the loop over micro-batches that it is part of ends
  std::span<RecvPort* const> fold;  // null: the local operand
  std::span<const Wait> waits;
};

// One thread block, resolved. Never changed once it is made, so that programs share it.
struct BlockCode {
  std::vector<Step> steps;
  std::vector<RecvPort*> folds;             // of all steps
  std::shared_ptr<const BlockOrder> order;  // holds the waits
  size_t bytes() const;                     // without `order`
};

class Program {
 public:
  // `plan` needs the section of `rank` only. `share_slots`: one copy may serve the receivers of several sends. Then a
  // slot is free again only when all of them have released it, which the compiler's plans allow for; the verifier
  // knows nothing of it, so plans from outside go without.
  static Result<std::unique_ptr<Program>> build(const Plan& plan, int rank, PortSource& ports, bool share_slots = true);
  // The same in two steps, where `order` is at hand: Synchronisation::of the same part. Thread blocks that `previous`
  // has under the same number, on the same connections, are taken from there.
  static Result<std::unique_ptr<Program>> bind(const Plan& plan, const RankPlan& part, const Synchronisation& order,
                                               PortSource& ports, const Program* previous = nullptr,
                                               Delta* delta = nullptr);
  // The section of `rank`; InternalError: the plan has none.
  static Result<const RankPlan*> part_of(const Plan& plan, int rank);

  // A thread block: `count` steps, cut into loops over the micro-batches; one for LoopOrder::MicroBatches.
  struct Block {
    const Step* steps;
    uint32_t count;
    uint32_t loop_end;  // of its first loop
  };
  std::span<const Block> blocks() const { return blocks_; }
  int chunks_per_block() const { return chunks_per_block_; }
  int scratch_chunks() const { return scratch_chunks_; }
  // Whether a Scratch index holds a whole chunk, and not only one micro-batch of it.
  bool scratch_holds_chunks() const { return scratch_holds_chunks_; }
  int copy_groups() const { return copy_groups_; }
  bool rendezvous_safe() const { return rendezvous_safe_; }
  // Only plain sends, receives and copies between Input and Output: every message may be one reference of any length.
  bool only_copies() const { return only_copies_ && rendezvous_safe_ && scratch_chunks_ == 0; }
  // Whether any instruction combines values.
  bool reduces() const { return reduces_; }
  std::span<SendPort* const> send_ports() const { return send_ports_; }
  std::span<RecvPort* const> recv_ports() const { return recv_ports_; }
  size_t bytes() const;  // with its thread blocks, without their BlockOrder

 private:
  Status resolve_ports(const RankPlan& part, PortSource& ports);
  std::shared_ptr<const BlockCode> resolve(const ThreadBlock& block,
                                           const std::shared_ptr<const BlockOrder>& order) const;
  bool equals(const BlockCode& known, const ThreadBlock& block, const BlockOrder& order) const;
  Step step_of(const Instruction& instruction) const;
  RecvPort* operand_of(int16_t operand) const {
    return operand == kLocalOperand ? nullptr : recv_by_connection_[static_cast<size_t>(operand)];
  }
  Status note(const ThreadBlock& block);

  std::vector<Block> blocks_;
  std::vector<std::shared_ptr<const BlockCode>> code_;  // by block
  std::vector<SendPort*> send_ports_;
  std::vector<RecvPort*> recv_ports_;
  std::vector<SendPort*> send_by_connection_;  // both only while it is built
  std::vector<RecvPort*> recv_by_connection_;
  int chunks_per_block_ = 1;
  int scratch_chunks_ = 0;
  int copy_groups_ = 0;
  bool rendezvous_safe_ = false;
  bool scratch_holds_chunks_ = false;
  bool reduces_ = false;
  bool only_copies_ = true;
};

}  // namespace theseus
