// Schedules around slow or dead NICs: direct exchanges between hosts in which hosts own unequal shares and every rail
// of every pair carries a given number of messages.
//
// AllReduce over n hosts: with a share w_h for host h, hosts i and j exchange w_i + w_j each way, so a host that owns
// less sends and receives less. The rail is free per message, since any rank may use any NIC of its host.
//
// When everything is due. Time is cut so that a connection with q messages has one arrive at each q-th of it: all
// connections of a plan stream from beginning to end, and a slow NIC, which has few messages, begins with its first as
// early as a fast one. Of an AllReduce, the messages that bring what is to be reduced and those that hand out results
// take turns on each connection, the latter a little behind. The former are matched with the owner's chunks in order
// of arrival, the latter in order of departure; so a chunk whose part comes over a slow rail is a late one of its
// owner, and others do not wait for it. A transfer's step is the time at which it arrives, so both ends of a connection
// order its messages by that, and each connection has a thread block of its own: contributions to a chunk are added
// one after the other, in the order of these times, which depends on the arguments alone.
#pragma once

#include <string>

#include "base/result.h"
#include "schedule/algorithm.h"
#include "schedule/topology.h"

namespace theseus {

// Whether build() gives `name` to healed(): "healed:" and arguments.
bool is_healed(const std::string& name);

// `arguments`: see healed_arguments.h. AllReduce, AllGather, ReduceScatter, Broadcast, AllToAll; hosts with equal
// numbers of ranks. InvalidArgument where the arguments are malformed or made for another cluster or root.
Result<Algorithm> healed(const std::string& arguments, Collective collective, const Topology& topology, int root);

}  // namespace theseus
