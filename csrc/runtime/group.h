// Groups: calls of one thread that run together at the outermost group_end(). Private to csrc/runtime.
#pragma once

#include <functional>
#include <vector>

#include "runtime/impl.h"

namespace theseus {

// What a communicator was asked for inside a group. Argument errors were found at the call.
struct GroupItem {
  Communicator* communicator;
  enum class Kind { Join, Collective, PointToPoint, AllToAllV, Barrier } kind;
  std::function<Status()> join;
  CollectiveCall collective;
  ResolvedOp op;
  Communicator::Impl::PointToPoint point_to_point;
  AllToAllVCall all_to_all_v;
  std::vector<size_t> counts;  // the arrays of all_to_all_v, copied
};

// Adds to this thread's group; it is open.
void group_add(GroupItem item);

}  // namespace theseus
