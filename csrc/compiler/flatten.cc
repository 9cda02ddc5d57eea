#include "compiler/flatten.h"

#include <cstring>
#include <type_traits>
#include <utility>

namespace theseus {
namespace {

static_assert(static_cast<int>(device::Op::Fold) == static_cast<int>(Opcode::Fold) && kOpcodes == 10);
static_assert(static_cast<int>(device::Space::Scratch) == static_cast<int>(Buffer::Scratch));
static_assert(static_cast<int>(device::Type::Float8e5m2) == static_cast<int>(DataType::Float8e5m2));
static_assert(static_cast<int>(device::Reduction::Min) == static_cast<int>(RedOp::Min));
static_assert(device::kLocalOperand == kLocalOperand);

constexpr size_t kAlignment = 16;

template <class T>
size_t padded(const std::vector<T>& array) {
  return (array.size() * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
}

device::Location locate(const Place& place, int chunks_per_block) {
  const auto space = static_cast<device::Space>(place.buffer);
  if (place.buffer == Buffer::None) return {space, {}, 0, 0};
  if (place.buffer == Buffer::Scratch) return {space, {}, 0, place.index};
  return {space, {}, place.index / chunks_per_block, place.index % chunks_per_block};
}

// Loops of one TB: [first, end) of its instructions.
std::vector<device::Loop> loops_of(const ThreadBlock& block, LoopOrder order) {
  std::vector<device::Loop> loops;
  const auto count = static_cast<uint32_t>(block.instructions.size());
  for (uint32_t i = 0; i < count; ++i) {
    const bool starts = i == 0 || (order == LoopOrder::SubPipelines &&
                                   block.instructions[i].sub_pipeline != block.instructions[i - 1].sub_pipeline);
    if (starts) loops.push_back({i, i});
    loops.back().end = i + 1;
  }
  return loops;
}

device::Wait wait_of(const Dependency& dependency, const std::vector<device::Loop>& loops) {
  const auto on = static_cast<uint32_t>(dependency.step);
  const device::Loop* loop = loops.data();
  while (loop->end <= on) ++loop;
  return {static_cast<uint32_t>(dependency.tb), static_cast<uint32_t>(dependency.distance), loop->first,
          loop->end - loop->first, on - loop->first + 1};
}

class Flattening {
 public:
  Flattening(const Plan& plan, const RankPlan& part) : plan_(plan), part_(part) {}

  FlatProgram run() {
    for (const ThreadBlock& block : part_.thread_blocks) loops_.push_back(loops_of(block, plan_.loop));
    for (size_t tb = 0; tb < part_.thread_blocks.size(); ++tb) add_block(tb);
    mark_silent();
    return std::move(flat_);
  }

 private:
  void add_block(size_t tb) {
    const auto first = static_cast<uint32_t>(flat_.steps.size());
    firsts_.push_back(first);
    flat_.blocks.push_back(
        {static_cast<uint32_t>(flat_.loops.size()), static_cast<uint32_t>(flat_.loops.size() + loops_[tb].size())});
    for (const device::Loop& loop : loops_[tb]) flat_.loops.push_back({first + loop.first, first + loop.end});
    for (const Instruction& instruction : part_.thread_blocks[tb].instructions) add_step(tb, instruction);
  }

  void add_step(size_t tb, const Instruction& instruction) {
    device::Step step = {};
    step.op = static_cast<device::Op>(instruction.opcode);
    step.recv_is_left = instruction.recv_is_left ? 1 : 0;
    step.send = instruction.send;
    step.recv = instruction.recv;
    step.src = locate(instruction.src, plan_.chunks_per_block);
    step.dst = locate(instruction.dst, plan_.chunks_per_block);
    step.first_wait = static_cast<uint32_t>(flat_.waits.size());
    for (const Dependency& dependency : instruction.dependencies) {
      if (static_cast<size_t>(dependency.tb) == tb) continue;
      flat_.waits.push_back(wait_of(dependency, loops_[static_cast<size_t>(dependency.tb)]));
    }
    step.waits = static_cast<uint32_t>(flat_.waits.size()) - step.first_wait;
    step.first_operand = static_cast<uint32_t>(flat_.operands.size());
    step.operands = static_cast<uint32_t>(instruction.fold.size());
    flat_.operands.insert(flat_.operands.end(), instruction.fold.begin(), instruction.fold.end());
    flat_.steps.push_back(step);
  }

  void mark_silent() {
    for (device::Step& step : flat_.steps) step.silent = 1;
    for (const device::Wait& wait : flat_.waits) {
      flat_.steps[firsts_[wait.block] + wait.before + wait.place - 1].silent = 0;
    }
  }

  const Plan& plan_;
  const RankPlan& part_;
  std::vector<std::vector<device::Loop>> loops_;  // by TB
  std::vector<uint32_t> firsts_;                  // by TB: its first step
  FlatProgram flat_;
};

}  // namespace

size_t FlatProgram::bytes() const {
  return padded(blocks) + padded(loops) + padded(steps) + padded(waits) + padded(operands);
}

device::Program FlatProgram::place(void* memory, const void* address) const {
  size_t offset = 0;
  const auto put = [&](const auto& array) {
    using Element = typename std::remove_cvref_t<decltype(array)>::value_type;
    if (!array.empty()) std::memcpy(static_cast<char*>(memory) + offset, array.data(), array.size() * sizeof(Element));
    const auto* there = reinterpret_cast<const Element*>(static_cast<const char*>(address) + offset);
    offset += padded(array);
    return there;
  };
  device::Program program = {};
  program.blocks = put(blocks);
  program.loops = put(loops);
  program.steps = put(steps);
  program.waits = put(waits);
  program.operands = put(operands);
  return program;
}

FlatProgram flatten(const Plan& plan, const RankPlan& part) { return Flattening(plan, part).run(); }

bool fits_kernels(const RankPlan& part) {
  for (const ThreadBlock& block : part.thread_blocks) {
    for (const Instruction& instruction : block.instructions) {
      if (instruction.fold.size() > device::kMostOperands) return false;
    }
  }
  return true;
}

}  // namespace theseus
