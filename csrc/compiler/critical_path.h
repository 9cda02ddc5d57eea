// List scheduling by critical path, in time: from instant to instant, each link that is idle takes, of the tasks that
// could start on it, the one with the longest way still before it. For what the paper's rules do badly: HPDS lets the
// whole way of a chunk into one sub-pipeline, so that in a ring each sub-pipeline waits for one chunk to come all the
// way round.
#pragma once

#include "compiler/pipeline.h"

namespace theseus {

// A task takes kInsideHost or kBetweenHosts. Its sub-pipeline is the first after those of what it depends on and of
// what its links did before; so in none of them do tasks share a link or depend on each other. Time grows as (tasks and
// their links) * log, as long as tasks use few links each.
Pipeline schedule_by_critical_path(const TaskGraph& graph);

}  // namespace theseus
