#include "executor/synchronisation.h"

#include <algorithm>
#include <utility>

namespace theseus {
namespace {

template <class T>
size_t bytes_of(const std::vector<T>& vector) {
  return vector.capacity() * sizeof(T);
}

// Neighbours in one sub-pipeline share a loop, where the plan's order is by those; else all share one.
std::vector<uint32_t> loop_ends_of(const std::vector<Instruction>& instructions, LoopOrder loop) {
  const auto count = static_cast<uint32_t>(instructions.size());
  std::vector<uint32_t> ends(count, count);
  if (loop == LoopOrder::MicroBatches) return ends;
  for (uint32_t i = count; i-- > 1;) {
    ends[i - 1] = instructions[i - 1].sub_pipeline == instructions[i].sub_pipeline ? ends[i] : i;
  }
  return ends;
}

uint32_t loop_begin(const std::vector<uint32_t>& loop_ends, uint32_t step) {
  return static_cast<uint32_t>(std::lower_bound(loop_ends.begin(), loop_ends.end(), loop_ends[step]) -
                               loop_ends.begin());
}

}  // namespace

size_t BlockOrder::bytes() const {
  return sizeof *this + bytes_of(loop_ends) + bytes_of(copies) + bytes_of(wait_begins) + bytes_of(waits);
}

std::shared_ptr<const Synchronisation> Synchronisation::of(const Plan& plan, const RankPlan& part, bool share_slots,
                                                           const Synchronisation* previous, Delta* delta) {
  auto made = std::make_shared<Synchronisation>();
  if (share_slots) made->number_groups(part, previous);
  std::vector<std::vector<uint32_t>> loop_ends;
  for (const ThreadBlock& block : part.thread_blocks) loop_ends.push_back(loop_ends_of(block.instructions, plan.loop));
  BlockOrder order;  // filled again and again; what is new is copied, in its exact size
  made->blocks_.reserve(part.thread_blocks.size());
  made->bytes_ = sizeof *made;
  for (size_t tb = 0; tb < part.thread_blocks.size(); ++tb) {
    made->fill(order, part.thread_blocks[tb], loop_ends, tb);
    const bool known = previous != nullptr && tb < previous->blocks_.size() && *previous->blocks_[tb] == order;
    made->blocks_.push_back(known ? previous->blocks_[tb] : std::make_shared<const BlockOrder>(order));
    if (delta != nullptr) ++(known ? delta->shared : delta->made);
  }
  for (const auto& block : made->blocks_) made->bytes_ += block->bytes();
  made->bytes_ += bytes_of(made->blocks_) + bytes_of(made->groups_);
  return made;
}

void Synchronisation::fill(BlockOrder& order, const ThreadBlock& block,
                           const std::vector<std::vector<uint32_t>>& loop_ends, size_t tb) const {
  order.loop_ends = loop_ends[tb];
  order.copies.clear();
  order.wait_begins.clear();
  order.waits.clear();
  for (const Instruction& instruction : block.instructions) {
    order.wait_begins.push_back(static_cast<uint32_t>(order.waits.size()));
    order.copies.push_back(instruction.opcode == Opcode::Send ? group_of(instruction.src) : -1);
    for (const Dependency& d : instruction.dependencies) {
      const std::vector<uint32_t>& loops = loop_ends[static_cast<size_t>(d.tb)];
      const auto on = static_cast<uint32_t>(d.step);
      const uint32_t begin = loop_begin(loops, on);
      order.waits.push_back(
          {static_cast<uint32_t>(d.tb), static_cast<uint32_t>(d.distance), begin, loops[on] - begin, on - begin + 1});
    }
  }
  order.wait_begins.push_back(static_cast<uint32_t>(order.waits.size()));
}

// Sends of one place carry the same data where the place is input, or is written by one instruction alone: whatever
// is sent from it then is sent after that. (Recursive doubling sends one place again and again with new values.)
void Synchronisation::number_groups(const RankPlan& part, const Synchronisation* previous) {
  // By index of Input, then of Output.
  std::vector<uint32_t> sends[2], writes;
  const auto count = [](std::vector<uint32_t>& counts, int32_t index) {
    const auto at = static_cast<size_t>(index);
    if (counts.size() <= at) counts.resize(std::max(at + 1, 2 * counts.size()));
    ++counts[at];
  };
  for (const ThreadBlock& block : part.thread_blocks) {
    for (const Instruction& instruction : block.instructions) {
      const Place& src = instruction.src;
      if (instruction.dst.buffer == Buffer::Output) count(writes, instruction.dst.index);
      if (instruction.opcode == Opcode::Send && (src.buffer == Buffer::Input || src.buffer == Buffer::Output)) {
        count(sends[src.buffer == Buffer::Output], src.index);
      }
    }
  }
  std::vector<bool> taken;
  for (const Buffer buffer : {Buffer::Input, Buffer::Output}) {
    const std::vector<uint32_t>& counts = sends[buffer == Buffer::Output];
    for (size_t index = 0; index < counts.size(); ++index) {
      const bool rewritten = buffer == Buffer::Output && index < writes.size() && writes[index] > 1;
      if (counts[index] < 2 || rewritten) continue;
      const Place place{buffer, static_cast<int32_t>(index)};
      const int32_t known = previous == nullptr ? -1 : previous->group_of(place);
      groups_.push_back({place.buffer, place.index, known});
      if (known < 0) continue;
      taken.resize(std::max<size_t>(taken.size(), static_cast<size_t>(known) + 1));
      taken[static_cast<size_t>(known)] = true;
    }
  }
  size_t free = 0;
  for (Group& group : groups_) {
    while (free < taken.size() && taken[free]) ++free;
    if (group.number < 0) group.number = static_cast<int32_t>(free++);
    copy_groups_ = std::max(copy_groups_, group.number + 1);
  }
}

int32_t Synchronisation::group_of(const Place& place) const {
  const auto at = std::lower_bound(groups_.begin(), groups_.end(), place, [](const Group& group, const Place& sought) {
    return std::pair(group.buffer, group.index) < std::pair(sought.buffer, sought.index);
  });
  return at != groups_.end() && at->buffer == place.buffer && at->index == place.index ? at->number : -1;
}

}  // namespace theseus
