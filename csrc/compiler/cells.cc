#include "compiler/cells.h"

namespace theseus {

Cells::Cells(const Plan& plan, int micro_batches, bool in_place)
    : plan_(plan), micro_batches_(micro_batches), in_place_(in_place) {
  for (const RankPlan& part : plan.rank_plans) {
    const BufferShape shape = buffer_shape(plan.collective, plan.ranks, plan.root, part.rank);
    Rank rank;
    rank.first = total_;
    rank.inputs = int64_t{shape.input_blocks} * plan.chunks_per_block;
    rank.outputs = int64_t{shape.output_blocks} * plan.chunks_per_block;
    total_ += micro_batches * (rank.inputs + rank.outputs) + part.scratch_chunks;
    ranks_.push_back(rank);
  }
}

int64_t Cells::cell(int rank, int micro_batch, Place place) const {
  const Rank& r = ranks_[static_cast<size_t>(rank)];
  const int64_t user = r.inputs + r.outputs;
  if (place.buffer == Buffer::Scratch) return r.first + micro_batches_ * user + place.index;
  if (in_place_ && place.buffer == Buffer::Output) {
    const Place twin = in_place_twin(plan_.collective, plan_.ranks, plan_.root, rank, plan_.chunks_per_block, place);
    if (twin.buffer == Buffer::Input) place = twin;
  }
  const int64_t offset = place.buffer == Buffer::Input ? place.index : r.inputs + place.index;
  return r.first + micro_batch * user + offset;
}

}  // namespace theseus
