// What a schedule alone says of how its thread blocks work together, on one rank: loops over the micro-batches, waits
// for one another, and sends that can share one copy. Connections and buffers do not matter here.
//
// Of a schedule that replaces another only the thread blocks that differ are made; the rest is shared with it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "resource/builder.h"
#include "schedule/plan.h"

namespace theseus {

// A Dependency, ready to be compared to how many instructions TB `tb` has finished: over n micro-batches, its loop
// begins after before * n of them, each round of the loop is `width` long, and the instruction is number `place` of it.
struct Wait {
  uint32_t tb;
  uint32_t distance;
  uint32_t before;
  uint32_t width;
  uint32_t place;  // counts from 1
  bool operator==(const Wait&) const = default;
};

// One thread block. Never changed once it is made, so that programs share it.
struct BlockOrder {
  std::vector<uint32_t> loop_ends;    // by step: where, in its block, the loop that it is part of ends
  std::vector<int32_t> copies;        // by step; Send: index of the group of sends of the same data, or -1
  std::vector<uint32_t> wait_begins;  // by step, and one more
  std::vector<Wait> waits;            // of all steps
  bool operator==(const BlockOrder&) const = default;
  size_t bytes() const;
};

class Synchronisation {
 public:
  // Of one rank's part. `share_slots`: see Program::build. What equals a thread block of `previous` (same number) is
  // shared with it, and groups of copies keep their numbers, so that one difference does not make others.
  static std::shared_ptr<const Synchronisation> of(const Plan& plan, const RankPlan& part, bool share_slots,
                                                   const Synchronisation* previous = nullptr, Delta* delta = nullptr);

  const std::vector<std::shared_ptr<const BlockOrder>>& blocks() const { return blocks_; }
  int copy_groups() const { return copy_groups_; }  // above all their numbers
  size_t bytes() const { return bytes_; }

 private:
  // A group of sends that carry the same data: those of one place.
  struct Group {
    Buffer buffer;
    int32_t index;
    int32_t number;
  };
  void number_groups(const RankPlan& part, const Synchronisation* previous);
  int32_t group_of(const Place& place) const;
  void fill(BlockOrder& order, const ThreadBlock& block, const std::vector<std::vector<uint32_t>>& loop_ends,
            size_t tb) const;

  std::vector<std::shared_ptr<const BlockOrder>> blocks_;
  std::vector<Group> groups_;  // by buffer and index
  int copy_groups_ = 0;
  size_t bytes_ = 0;
};

}  // namespace theseus
