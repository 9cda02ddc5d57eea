#include "executor/program.h"

#include <algorithm>
#include <string>

namespace theseus {

size_t BlockCode::bytes() const {
  return sizeof *this + steps.capacity() * sizeof(Step) + folds.capacity() * sizeof(RecvPort*);
}

Result<const RankPlan*> Program::part_of(const Plan& plan, int rank) {
  for (const RankPlan& candidate : plan.rank_plans) {
    if (candidate.rank == rank) return &candidate;
  }
  return Status::internal("plan " + plan.name + " has no part for rank " + std::to_string(rank));
}

Result<std::unique_ptr<Program>> Program::build(const Plan& plan, int rank, PortSource& ports, bool share_slots) {
  Result<const RankPlan*> part = part_of(plan, rank);
  if (!part.ok()) return part.status();
  return bind(plan, **part, *Synchronisation::of(plan, **part, share_slots), ports);
}

Result<std::unique_ptr<Program>> Program::bind(const Plan& plan, const RankPlan& part, const Synchronisation& order,
                                               PortSource& ports, const Program* previous, Delta* delta) {
  auto program = std::make_unique<Program>();
  program->chunks_per_block_ = plan.chunks_per_block;
  program->scratch_chunks_ = part.scratch_chunks;
  program->scratch_holds_chunks_ = plan.loop == LoopOrder::SubPipelines;
  program->rendezvous_safe_ = plan.rendezvous_safe;
  program->copy_groups_ = order.copy_groups();
  THESEUS_TRY(program->resolve_ports(part, ports));
  program->blocks_.reserve(part.thread_blocks.size());
  program->code_.reserve(part.thread_blocks.size());
  for (size_t tb = 0; tb < part.thread_blocks.size(); ++tb) {
    const BlockCode* known = previous != nullptr && tb < previous->code_.size() ? previous->code_[tb].get() : nullptr;
    const ThreadBlock& block = part.thread_blocks[tb];
    THESEUS_TRY(program->note(block));
    if (known != nullptr && program->equals(*known, block, *order.blocks()[tb])) {
      program->code_.push_back(previous->code_[tb]);
      if (delta != nullptr) ++delta->shared;
    } else {
      program->code_.push_back(program->resolve(block, order.blocks()[tb]));
      if (delta != nullptr) ++delta->made;
    }
    const std::vector<uint32_t>& loop_ends = order.blocks()[tb]->loop_ends;
    const auto count = static_cast<uint32_t>(block.instructions.size());
    program->blocks_.push_back({program->code_.back()->steps.data(), count, count == 0 ? 0 : loop_ends.front()});
  }
  program->send_by_connection_ = {};
  program->recv_by_connection_ = {};
  return program;
}

Status Program::resolve_ports(const RankPlan& part, PortSource& ports) {
  for (const Connection& connection : part.connections) {
    send_by_connection_.push_back(nullptr);
    recv_by_connection_.push_back(nullptr);
    if (connection.outgoing) {
      Result<SendPort*> port = ports.send_port(connection.peer, connection.rail, connection.channel);
      if (!port.ok()) return port.status();
      send_by_connection_.back() = *port;
      send_ports_.push_back(*port);
    } else {
      Result<RecvPort*> port = ports.recv_port(connection.peer, connection.rail, connection.channel);
      if (!port.ok()) return port.status();
      recv_by_connection_.back() = *port;
      recv_ports_.push_back(*port);
    }
  }
  return {};
}

// What the program as a whole can say of its instructions.
Status Program::note(const ThreadBlock& block) {
  for (const Instruction& instruction : block.instructions) {
    if (instruction.fold.size() > kMostOperands) {
      return Status::usage("a plan folds " + std::to_string(instruction.fold.size()) +
                           " values at once; this executor takes at most " + std::to_string(kMostOperands));
    }
    switch (instruction.opcode) {
      case Opcode::Nop:
      case Opcode::Send:
      case Opcode::Recv:
      case Opcode::Copy: break;
      case Opcode::RecvCopySend: only_copies_ = false; break;
      default: only_copies_ = false; reduces_ = true;
    }
  }
  return {};
}

Step Program::step_of(const Instruction& instruction) const {
  const auto locate = [this](const Place& place) {
    if (place.buffer == Buffer::Scratch) return Location{place.buffer, 0, place.index};
    return Location{place.buffer, place.index / chunks_per_block_, place.index % chunks_per_block_};
  };
  Step step;
  step.opcode = instruction.opcode;
  step.recv_is_left = instruction.recv_is_left;
  if (instruction.send >= 0) step.send = send_by_connection_[static_cast<size_t>(instruction.send)];
  if (instruction.recv >= 0) step.recv = recv_by_connection_[static_cast<size_t>(instruction.recv)];
  step.src = locate(instruction.src);
  step.dst = locate(instruction.dst);
  return step;
}

bool Program::equals(const BlockCode& known, const ThreadBlock& block, const BlockOrder& order) const {
  // Equal orders are one object (Synchronisation::of).
  if (known.order.get() != &order || known.steps.size() != block.instructions.size()) return false;
  for (size_t i = 0; i < known.steps.size(); ++i) {
    const Instruction& instruction = block.instructions[i];
    const Step& there = known.steps[i];
    const Step here = step_of(instruction);
    if (here.opcode != there.opcode || here.recv_is_left != there.recv_is_left || here.send != there.send ||
        here.recv != there.recv || here.src != there.src || here.dst != there.dst) {
      return false;
    }
    const auto same = [this](int16_t operand, RecvPort* port) { return operand_of(operand) == port; };
    if (!std::equal(instruction.fold.begin(), instruction.fold.end(), there.fold.begin(), there.fold.end(), same)) {
      return false;
    }
  }
  return true;
}

std::shared_ptr<const BlockCode> Program::resolve(const ThreadBlock& block,
                                                  const std::shared_ptr<const BlockOrder>& order) const {
  auto code = std::make_shared<BlockCode>();
  code->order = order;
  size_t operands = 0;
  for (const Instruction& instruction : block.instructions) operands += instruction.fold.size();
  code->folds.reserve(operands);  // steps point into it
  code->steps.reserve(block.instructions.size());
  const std::span<const Wait> waits = order->waits;
  for (size_t i = 0; i < block.instructions.size(); ++i) {
    const Instruction& instruction = block.instructions[i];
    Step step = step_of(instruction);
    step.copies = order->copies[i];
    step.loop_end = order->loop_ends[i];
    step.waits = waits.subspan(order->wait_begins[i], order->wait_begins[i + 1] - order->wait_begins[i]);
    const size_t begin = code->folds.size();
    for (const int16_t operand : instruction.fold) code->folds.push_back(operand_of(operand));
    step.fold = std::span<RecvPort* const>(code->folds).subspan(begin);
    code->steps.push_back(step);
  }
  return code;
}

size_t Program::bytes() const {
  size_t bytes = sizeof *this + blocks_.capacity() * sizeof(Block) + code_.capacity() * sizeof(code_[0]) +
                 (send_ports_.capacity() + recv_ports_.capacity()) * sizeof(void*);
  for (const auto& code : code_) bytes += code->bytes();
  return bytes;
}

}  // namespace theseus
