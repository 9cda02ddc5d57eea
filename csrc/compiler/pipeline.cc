#include "compiler/pipeline.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "compiler/critical_path.h"
#include "compiler/hpds.h"

namespace theseus {
namespace {

// One pass over the chunks is one sub-pipeline: each adds its next task, unless a link of it is taken, or what it
// depends on is not placed yet.
class RoundRobin {
 public:
  explicit RoundRobin(const TaskGraph& graph) : graph_(graph), busy_(graph.links.size(), -1) {
    result_.sub_pipeline.assign(static_cast<size_t>(graph.size()), -1);
    result_.order.reserve(static_cast<size_t>(graph.size()));
    for (int32_t task = 0; task < graph.size(); ++task) {
      if (task == 0 || graph.chunk_of(task) != graph.chunk_of(task - 1)) chunks_.push_back({task, task});
      chunks_.back().end = task + 1;
    }
  }

  Pipeline run() {
    while (!chunks_.empty()) {
      for (Chunk& chunk : chunks_) {
        if (fits(chunk.next)) place(chunk.next++);
      }
      std::erase_if(chunks_, [](const Chunk& chunk) { return chunk.next == chunk.end; });
      ++result_.count;
    }
    return std::move(result_);
  }

 private:
  struct Chunk {
    int32_t next, end;  // tasks
  };

  // Its dependencies are placed, since the tasks of a chunk go in order; but perhaps in this very sub-pipeline.
  bool fits(int32_t task) const {
    const auto links = graph_.links_of(task);
    return std::none_of(links.begin(), links.end(),
                        [&](int32_t link) { return busy_[static_cast<size_t>(link)] == result_.count; });
  }

  void place(int32_t task) {
    result_.sub_pipeline[static_cast<size_t>(task)] = result_.count;
    result_.order.push_back(task);
    for (const int32_t link : graph_.links_of(task)) busy_[static_cast<size_t>(link)] = result_.count;
  }

  const TaskGraph& graph_;
  Pipeline result_;
  std::vector<Chunk> chunks_;  // those with tasks left
  std::vector<int32_t> busy_;  // by link: the last sub-pipeline that used it
};

// Tasks sorted by (stage, step); each such pair is a sub-pipeline.
Pipeline by_step(const TaskGraph& graph, const std::vector<int32_t>& stages) {
  Pipeline result;
  result.order.resize(static_cast<size_t>(graph.size()));
  std::iota(result.order.begin(), result.order.end(), 0);
  const auto level = [&](int32_t task) { return std::pair(stages[static_cast<size_t>(task)], graph.step_of(task)); };
  std::stable_sort(result.order.begin(), result.order.end(), [&](int32_t a, int32_t b) { return level(a) < level(b); });
  result.sub_pipeline.assign(result.order.size(), 0);
  for (size_t i = 0; i < result.order.size(); ++i) {
    if (i == 0 || level(result.order[i]) != level(result.order[i - 1])) ++result.count;
    result.sub_pipeline[static_cast<size_t>(result.order[i])] = result.count - 1;
  }
  return result;
}

}  // namespace

const char* name_of(Scheduling scheduling) {
  static constexpr const char* names[kSchedulings] = {"PerConnection",  "Hpds",       "RoundRobin",
                                                      "AlgorithmLevel", "StageLevel", "HpdsImproved"};
  return static_cast<int>(scheduling) < kSchedulings ? names[static_cast<int>(scheduling)] : "unknown scheduling";
}

std::vector<int32_t> stages_of(const TaskGraph& graph) {
  std::vector<int32_t> stages(static_cast<size_t>(graph.size()), 0);
  for (int32_t task = 0; task < graph.size(); ++task) {
    int32_t& stage = stages[static_cast<size_t>(task)];
    for (const int32_t p : graph.predecessors_of(task)) {
      const auto before = static_cast<size_t>(p);
      const bool changes = graph.between_hosts[before] != graph.between_hosts[static_cast<size_t>(task)];
      stage = std::max(stage, stages[before] + (changes ? 1 : 0));
    }
  }
  return stages;
}

Result<Pipeline> schedule_tasks(const TaskGraph& graph, Scheduling scheduling) {
  switch (scheduling) {
    case Scheduling::Hpds: return schedule_hpds(graph);
    case Scheduling::HpdsImproved: return schedule_by_critical_path(graph);
    case Scheduling::RoundRobin: return RoundRobin(graph).run();
    case Scheduling::AlgorithmLevel: return by_step(graph, std::vector<int32_t>(static_cast<size_t>(graph.size()), 0));
    case Scheduling::StageLevel: return by_step(graph, stages_of(graph));
    default: break;
  }
  return Status::argument(std::string(name_of(scheduling)) + " has no sub-pipelines; lower() compiles it");
}

}  // namespace theseus
