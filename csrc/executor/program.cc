#include "executor/program.h"

#include <map>
#include <string>
#include <tuple>

namespace theseus {

Result<std::unique_ptr<Program>> Program::build(const Plan& plan, int rank, PortSource& ports) {
  const RankPlan* own = nullptr;
  for (const RankPlan& candidate : plan.rank_plans) {
    if (candidate.rank == rank) own = &candidate;
  }
  if (own == nullptr) return Status::internal("plan " + plan.name + " has no part for rank " + std::to_string(rank));

  auto program = std::make_unique<Program>();
  program->chunks_per_block_ = plan.chunks_per_block;
  program->scratch_chunks_ = own->scratch_chunks;
  program->rendezvous_safe_ = plan.rendezvous_safe;
  THESEUS_TRY(program->resolve_ports(*own, ports));
  for (const ThreadBlock& thread_block : own->thread_blocks) {
    for (const Instruction& instruction : thread_block.instructions) {
      if (instruction.fold.size() > kMostOperands) {
        return Status::usage("plan " + plan.name + " folds " + std::to_string(instruction.fold.size()) +
                             " values at once; this executor takes at most " + std::to_string(kMostOperands));
      }
    }
    program->blocks_.push_back(
        {static_cast<uint32_t>(program->steps_.size()), static_cast<uint32_t>(thread_block.instructions.size())});
    for (const Instruction& instruction : thread_block.instructions) program->add_step(instruction);
  }
  program->group_copies();
  return program;
}

Status Program::resolve_ports(const RankPlan& plan, PortSource& ports) {
  for (const Connection& connection : plan.connections) {
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

// Sends of one place carry the same data where the place is input, or is written by one instruction alone: whatever
// is sent from it then is sent after that. (Recursive doubling sends one place again and again with new values.)
void Program::group_copies() {
  using Key = std::tuple<Buffer, int32_t, int32_t>;
  std::map<Key, int> writers;
  std::map<Key, std::vector<Step*>> senders;
  for (Step& step : steps_) {
    if (step.dst.buffer == Buffer::Output) ++writers[{step.dst.buffer, step.dst.block, step.dst.piece}];
    if (step.opcode == Opcode::Send && step.src.buffer != Buffer::Scratch) {
      senders[{step.src.buffer, step.src.block, step.src.piece}].push_back(&step);
    }
  }
  for (auto& [place, steps] : senders) {
    const auto written = writers.find(place);
    if (steps.size() < 2 || (written != writers.end() && written->second > 1)) continue;
    for (Step* step : steps) step->copies = copy_groups_;
    ++copy_groups_;
  }
}

void Program::add_step(const Instruction& instruction) {
  const auto locate = [this](const Place& place) {
    if (place.buffer == Buffer::Scratch) return Location{place.buffer, 0, place.index};
    return Location{place.buffer, place.index / chunks_per_block_, place.index % chunks_per_block_};
  };
  Step step;
  step.opcode = instruction.opcode;
  step.recv_is_left = instruction.recv_is_left;
  if (instruction.send >= 0) step.send = send_by_connection_[instruction.send];
  if (instruction.recv >= 0) step.recv = recv_by_connection_[instruction.recv];
  reduces_ |= instruction.opcode == Opcode::Fold || instruction.opcode == Opcode::Reduce ||
              instruction.opcode == Opcode::RecvReduceCopy || instruction.opcode == Opcode::RecvReduceSend ||
              instruction.opcode == Opcode::RecvReduceCopySend;
  only_copies_ &= instruction.opcode == Opcode::Nop || instruction.opcode == Opcode::Send ||
                  instruction.opcode == Opcode::Recv || instruction.opcode == Opcode::Copy;
  step.src = locate(instruction.src);
  step.dst = locate(instruction.dst);
  if (!instruction.fold.empty()) {
    std::vector<RecvPort*>& operands = folds_.emplace_back();
    for (const int16_t operand : instruction.fold) {
      operands.push_back(operand == kLocalOperand ? nullptr : recv_by_connection_[operand]);
    }
    step.fold = operands;
  }
  if (!instruction.dependencies.empty()) step.dependencies = dependencies_.emplace_back(instruction.dependencies);
  steps_.push_back(step);
}

}  // namespace theseus
