#include "executor/program.h"

#include <map>
#include <string>
#include <tuple>

namespace theseus {

Result<std::unique_ptr<Program>> Program::build(const Plan& plan, int rank, PortSource& ports, bool share_slots) {
  const RankPlan* own = nullptr;
  for (const RankPlan& candidate : plan.rank_plans) {
    if (candidate.rank == rank) own = &candidate;
  }
  if (own == nullptr) return Status::internal("plan " + plan.name + " has no part for rank " + std::to_string(rank));

  auto program = std::make_unique<Program>();
  program->chunks_per_block_ = plan.chunks_per_block;
  program->scratch_chunks_ = own->scratch_chunks;
  program->scratch_holds_chunks_ = plan.loop == LoopOrder::SubPipelines;
  program->rendezvous_safe_ = plan.rendezvous_safe;
  THESEUS_TRY(program->resolve_ports(*own, ports));
  for (size_t tb = 0; tb < own->thread_blocks.size(); ++tb) {
    for (const Instruction& instruction : own->thread_blocks[tb].instructions) {
      if (instruction.fold.size() > kMostOperands) {
        return Status::usage("plan " + plan.name + " folds " + std::to_string(instruction.fold.size()) +
                             " values at once; this executor takes at most " + std::to_string(kMostOperands));
      }
    }
    program->add_block(plan, *own, tb);
  }
  program->resolve_waits(*own);
  if (share_slots) program->group_copies();
  return program;
}

// Cuts the thread block into its loops: neighbours in one sub-pipeline share one, where the plan's order is by those.
void Program::add_block(const Plan& plan, const RankPlan& own, size_t tb) {
  const std::vector<Instruction>& instructions = own.thread_blocks[tb].instructions;
  const auto count = static_cast<uint32_t>(instructions.size());
  const auto first = static_cast<uint32_t>(steps_.size());
  for (const Instruction& instruction : instructions) add_step(instruction);
  uint32_t loop_end = count;
  for (uint32_t i = count; i-- > 0;) {
    const bool is_last = i + 1 == count || (plan.loop == LoopOrder::SubPipelines &&
                                            instructions[i].sub_pipeline != instructions[i + 1].sub_pipeline);
    if (is_last) loop_end = i + 1;
    steps_[first + i].loop_end = loop_end;
  }
  blocks_.push_back({first, count, loop_end});
}

void Program::resolve_waits(const RankPlan& own) {
  // Where the loop of each step begins, in its block.
  std::vector<uint32_t> loop_begin(steps_.size());
  for (const Block& block : blocks_) {
    uint32_t begin = 0;
    for (uint32_t i = 0; i < block.count; ++i) {
      if (i == steps_[block.first + begin].loop_end) begin = i;
      loop_begin[block.first + i] = begin;
    }
  }
  size_t index = 0;
  for (const ThreadBlock& thread_block : own.thread_blocks) {
    for (const Instruction& instruction : thread_block.instructions) {
      Step& step = steps_[index++];
      if (instruction.dependencies.empty()) continue;
      std::vector<Wait>& waits = waits_.emplace_back();
      for (const Dependency& d : instruction.dependencies) {
        const uint32_t on = blocks_[static_cast<size_t>(d.tb)].first + static_cast<uint32_t>(d.step);
        const uint32_t begin = loop_begin[on];
        waits.push_back({static_cast<uint32_t>(d.tb), static_cast<uint32_t>(d.distance), begin,
                         steps_[on].loop_end - begin, static_cast<uint32_t>(d.step) - begin + 1});
      }
      step.waits = waits;
    }
  }
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
  steps_.push_back(step);
}

}  // namespace theseus
