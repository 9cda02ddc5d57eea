// Plans that others made: what they are right for, and the connections they get here.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "runtime/peer.h"
#include "schedule/plan.h"
#include "schedule/topology.h"

namespace theseus {

struct PlanProperties {
  bool in_place = false;
  bool out_of_place = false;
  bool any_count = false;  // else counts must divide into chunks_per_block
  bool scales = false;     // right where inputs are scaled as they are read
};

// Verifies the whole plan in a file. What the verifier says, where it is right for nothing.
Result<PlanProperties> prove(const std::string& file, int slots);

// Slots that a sender can count on: a receiver may keep up to half of them to itself for a while after it released
// them (RecvPort::release), unless there are so few that half of them is one.
int dependable_slots(const std::vector<Peer>& peers);

// Gives every connection a FIFO of its own: plans number rails and channels as they like, hosts have so many rails, and
// inside a host there are none. Both ends have the same connections, so both count alike.
Status place_connections(RankPlan& part, const Topology& topology);

}  // namespace theseus
