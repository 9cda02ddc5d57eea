// Numbers for the memory that a plan touches: a cell is one micro-batch of one chunk of a buffer.
#pragma once

#include <vector>

#include "schedule/plan.h"

namespace theseus {

// Scratch has one cell an index, which all micro-batches use in turn. In place, the two names of a cell share a number.
class Cells {
 public:
  Cells(const Plan& plan, int micro_batches, bool in_place);

  int64_t total() const { return total_; }
  int64_t cell(int rank, int micro_batch, Place place) const;

 private:
  struct Rank {
    int64_t first = 0;
    int64_t inputs = 0;
    int64_t outputs = 0;
  };
  const Plan& plan_;
  int micro_batches_;
  bool in_place_;
  std::vector<Rank> ranks_;
  int64_t total_ = 0;
};

}  // namespace theseus
