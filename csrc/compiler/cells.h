// Numbers for the memory that a plan writes: a cell is one chunk of Output or Scratch at one rank. Input that is not
// also Output (in place) never changes, and needs none.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/places.h"
#include "schedule/plan.h"

namespace theseus {

class Cells {
 public:
  explicit Cells(const Plan& plan);

  int64_t total() const { return first_.back(); }
  // Cells of `rank`: [first(rank), first(rank + 1)), those of Scratch last.
  int64_t first(int rank) const { return first_[static_cast<size_t>(rank)]; }
  int64_t first_scratch(int rank) const { return first_scratch_[static_cast<size_t>(rank)]; }
  int64_t cell(int rank, Place place) const {
    return place.index + (place.buffer == Buffer::Scratch ? first_scratch(rank) : first(rank));
  }
  // The cell of Output that `input`, a place of Input, is another name of in place; -1: none.
  int64_t twin_of_input(int rank, Place input) const;
  // Whether Output[index] of `rank` is Input as well, in place.
  bool is_input_too(int rank, int32_t index) const;
  const ChunkSpace& space() const { return space_; }

 private:
  const Plan& plan_;
  ChunkSpace space_;
  std::vector<int64_t> first_;
  std::vector<int64_t> first_scratch_;
};

}  // namespace theseus
