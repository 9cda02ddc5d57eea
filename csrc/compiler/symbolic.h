// What a plan does to memory: which accesses race, and what ends up where.
#pragma once

#include <vector>

#include "base/result.h"
#include "compiler/plan_graph.h"

namespace theseus {

// Every two accesses to a cell, one of which writes, are ordered by TBs, dependencies and messages, whatever the number
// of slots. `order` is any order in which the events can happen. Fails with InvalidArgument naming both accesses, with
// InvalidUsage beyond `work_limit`.
Status check_races(const PlanGraph& graph, const std::vector<Event>& order, bool in_place, uint64_t work_limit);

// Runs the events in `order` on symbolic values. Meaningful after check_races().
Status check_values(const PlanGraph& graph, const std::vector<Event>& order, bool in_place, bool equal_bits);

}  // namespace theseus
