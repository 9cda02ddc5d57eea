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

}  // namespace theseus
