// Sub-pipelines: which tasks go side by side, and in which order (ResCCL, section 3.2).
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "compiler/tasks.h"

namespace theseus {

enum class Scheduling : uint8_t {
  PerConnection,   // no sub-pipelines: the first cut, lower()
  Hpds,            // hierarchical priority-based dynamic scheduling (hpds.h)
  RoundRobin,      // chunks in turn, at most one task of each in a sub-pipeline
  AlgorithmLevel,  // as the algorithm has it: a sub-pipeline is one of its steps, whatever links its tasks share
  // As MSCCLang: the same inside a stage, one stage after another. A stage is a maximal run, along the dependencies, of
  // tasks that stay inside a host, or of tasks that leave it.
  StageLevel,
  HpdsImproved,  // conflict-free as Hpds, by critical path, and one step deep (critical_path.h)
};
inline constexpr int kSchedulings = 6;
const char* name_of(Scheduling scheduling);  // "Hpds"

// How long a task takes, in halves of one inside a host: between hosts 2.5 times as long, the least that the paper has
// measured.
inline constexpr int32_t kInsideHost = 2;
inline constexpr int32_t kBetweenHosts = 5;

struct Pipeline {
  std::vector<int32_t> sub_pipeline;  // of each task
  std::vector<int32_t> order;         // tasks; sub_pipeline never falls along it, and no task depends on a later one
  int count = 0;                      // number of sub-pipelines
  // True: in no sub-pipeline do tasks share a link or depend on each other. Then a rank can send all that it sends in
  // one before it receives anything.
  bool sends_first = false;
};

// Depends on the arguments only. Time grows as (tasks and their links) * log. InvalidArgument for PerConnection.
Result<Pipeline> schedule_tasks(const TaskGraph& graph, Scheduling scheduling);

// Of each task; counts from 0 along the dependencies. See Scheduling::StageLevel.
std::vector<int32_t> stages_of(const TaskGraph& graph);

}  // namespace theseus
