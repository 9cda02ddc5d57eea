#include "compiler/compile.h"

#include <string>
#include <utility>

#include "compiler/fuse.h"
#include "compiler/lower_tasks.h"
#include "compiler/rank_ends.h"

namespace theseus {

namespace {

// Whether any rank has something to fuse: then all of them know that the plan is not rendezvous_safe.
bool fuses(const TaskGraph& graph, const Pipeline& pipeline, const RankEnds& ends, LoopOrder loop) {
  for (int rank = 0; rank < graph.space.ranks; ++rank) {
    if (fuse_ends(graph, pipeline, ends, ends.of(rank), loop).any) return true;
  }
  return false;
}

}  // namespace

Result<Plan> compile(const Algorithm& algorithm, const Topology& topology, const CompileOptions& options, int rank) {
  if (options.scheduling == Scheduling::PerConnection) return lower(algorithm, topology, rank);
  auto graph = build_tasks(algorithm, topology, options.fold);
  if (!graph.ok()) return graph.status();
  auto pipeline = schedule_tasks(*graph, options.scheduling);
  if (!pipeline.ok()) return pipeline.status();
  return compile_tasks(algorithm, *graph, *pipeline, options, rank);
}

Result<Plan> compile_tasks(const Algorithm& algorithm, const TaskGraph& graph, const Pipeline& pipeline,
                           const CompileOptions& options, int rank) {
  const std::string who = "algorithm '" + algorithm.name + "'";
  if (rank != kAllRanks && (rank < 0 || rank >= graph.space.ranks)) {
    return Status::argument(who + " has no rank " + std::to_string(rank));
  }
  Plan plan;
  plan.name = algorithm.name;
  plan.collective = graph.space.collective;
  plan.ranks = graph.space.ranks;
  plan.root = is_rooted(plan.collective) ? graph.space.root : 0;
  plan.chunks_per_block = graph.space.chunks_per_block;
  plan.loop = options.loop;
  const bool by_stage =
      options.allocation == TbAllocation::PerConnectionAndStage || options.scheduling == Scheduling::StageLevel;
  CompileOptions chosen = options;
  chosen.fuse = options.fuse && graph.several_hosts && !graph.exchanges;
  const bool is_even = options.allocation == TbAllocation::StateBasedEven && !by_stage;
  const RankEnds ends(graph, pipeline, chosen.fuse || is_even ? kAllRanks : rank, by_stage);
  if (!ends.fits()) return Status::argument(who + " has more stages than a connection has channels");
  chosen.fuse = chosen.fuse && fuses(graph, pipeline, ends, options.loop);
  plan.rendezvous_safe = !graph.exchanges && !chosen.fuse;
  TaskLowering lowering(graph, pipeline, chosen, ends, plan.rendezvous_safe);
  for (int r = 0; is_even && r < graph.space.ranks; ++r) THESEUS_TRY(lowering.make_room_for(r));
  const int first = rank == kAllRanks ? 0 : rank;
  const int last = rank == kAllRanks ? graph.space.ranks - 1 : rank;
  plan.rank_plans.reserve(static_cast<size_t>(last - first + 1));
  for (int r = first; r <= last; ++r) {
    auto part = lowering.run(r);
    if (!part.ok()) return Status::argument(who + ", " + part.status().message());
    plan.rank_plans.push_back(std::move(*part));
  }
  return plan;
}

}  // namespace theseus
