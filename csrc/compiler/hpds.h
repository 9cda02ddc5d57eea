// Hierarchical priority-based dynamic scheduling (ResCCL, section 3.2).
//
// Chunks wait in a priority queue, less-used first, then by number. The top chunk adds every task of it that has no
// pending data dependency and whose links are free in this sub-pipeline; its use counts one more, and the next chunk
// has its turn. When no chunk can add a task, the sub-pipeline closes. A dependency is pending until its task is
// placed, in an earlier sub-pipeline or in this one; but a task inside a host never joins the sub-pipeline of a task
// between hosts that it depends on, because that one takes so much longer.
#pragma once

#include "compiler/pipeline.h"

namespace theseus {

Pipeline schedule_hpds(const TaskGraph& graph);

// The same queues with other rules, for what the paper's do badly: it lets the whole way of a chunk into one
// sub-pipeline, so that in a ring each sub-pipeline waits for one chunk to come all the way round. Here a task never
// joins the sub-pipeline of one that it depends on, and of those that could go, the one with the longest way to the end
// goes first (critical path), a step between hosts counting 2.5 times.
Pipeline schedule_hpds_improved(const TaskGraph& graph);

}  // namespace theseus
