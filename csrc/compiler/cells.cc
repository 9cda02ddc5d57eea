#include "compiler/cells.h"

namespace theseus {

Cells::Cells(const Plan& plan) : plan_(plan), space_(space_of(plan)), first_{0} {
  for (const RankPlan& part : plan.rank_plans) {
    const BufferShape shape = buffer_shape(plan.collective, plan.ranks, plan.root, part.rank);
    first_scratch_.push_back(first_.back() + int64_t{shape.output_blocks} * plan.chunks_per_block);
    first_.push_back(first_scratch_.back() + part.scratch_chunks);
  }
}

int64_t Cells::twin_of_input(int rank, Place input) const {
  const Place twin = in_place_twin(plan_.collective, plan_.ranks, plan_.root, rank, plan_.chunks_per_block, input);
  return twin.buffer == Buffer::Output ? cell(rank, twin) : -1;
}

bool Cells::is_input_too(int rank, int32_t index) const {
  const Place place{Buffer::Output, index};
  return in_place_twin(plan_.collective, plan_.ranks, plan_.root, rank, plan_.chunks_per_block, place).buffer ==
         Buffer::Input;
}

}  // namespace theseus
