// A rank's part of a plan, resolved to ports: what the host executor runs. Built once per plan and communicator.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
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
};

struct Step {
  Opcode opcode = Opcode::Nop;
  bool recv_is_left = false;
  SendPort* send = nullptr;
  RecvPort* recv = nullptr;
  Location src;
  Location dst;
  int32_t copies = -1;              // Send: index of the group of sends that carry the same data, if there are several
  std::span<RecvPort* const> fold;  // null: the local operand
  std::span<const Dependency> dependencies;
};

class Program {
 public:
  // `plan` needs the section of `rank` only.
  static Result<std::unique_ptr<Program>> build(const Plan& plan, int rank, PortSource& ports);

  struct Block {
    uint32_t first;
    uint32_t count;
  };
  std::span<const Block> blocks() const { return blocks_; }
  const Step& step(uint32_t index) const { return steps_[index]; }
  int chunks_per_block() const { return chunks_per_block_; }
  int scratch_chunks() const { return scratch_chunks_; }
  int copy_groups() const { return copy_groups_; }
  bool rendezvous_safe() const { return rendezvous_safe_; }
  // Only plain sends, receives and copies between Input and Output: every message may be one reference of any length.
  bool only_copies() const { return only_copies_ && rendezvous_safe_ && scratch_chunks_ == 0; }
  // Whether any instruction combines values.
  bool reduces() const { return reduces_; }
  std::span<SendPort* const> send_ports() const { return send_ports_; }
  std::span<RecvPort* const> recv_ports() const { return recv_ports_; }

 private:
  Status resolve_ports(const RankPlan& plan, PortSource& ports);
  void add_step(const Instruction& instruction);
  void group_copies();

  std::vector<Block> blocks_;
  std::vector<Step> steps_;
  std::vector<SendPort*> send_ports_;
  std::vector<RecvPort*> recv_ports_;
  std::vector<SendPort*> send_by_connection_;
  std::vector<RecvPort*> recv_by_connection_;
  std::vector<std::vector<RecvPort*>> folds_;
  std::vector<std::vector<Dependency>> dependencies_;
  int chunks_per_block_ = 1;
  int scratch_chunks_ = 0;
  int copy_groups_ = 0;
  bool rendezvous_safe_ = false;
  bool reduces_ = false;
  bool only_copies_ = true;
};

}  // namespace theseus
