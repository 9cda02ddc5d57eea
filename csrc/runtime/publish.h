// Writing to the job's context from inside a job: attributes, values, schedules. Asynchronous; no request waits for it.
#pragma once

#include <memory>
#include <string>

#include "context/record.h"
#include "runtime/communicator.h"

namespace theseus {

// Hands a record to the node's agent. The work ends when the job's log has taken it, on a majority of its voters, or
// with the reason why not: InvalidArgument (malformed, a name taken, a policy that does not parse, a plan that is not
// right), SystemError or Timeout (no agent, no quorum). `plan`: the plan file of a ScheduleDefinition that names none
// and no algorithm; its hash and length are filled in.
std::shared_ptr<Work> publish(Record record, const std::string& plan = {});

// Waits until all that this process published is taken or refused; the first refusal since the last call, if any.
Status publish_sync(double seconds);

}  // namespace theseus
