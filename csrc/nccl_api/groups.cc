#include "nccl_api/groups.h"

#include <string>
#include <utility>
#include <vector>

#include "nccl_api/api.h"
#include "nccl_api/errors.h"
#include "nccl_api/fallback.h"
#include "nccl_api/handles.h"

namespace theseus::nccl_api {
namespace {

struct GroupState {
  ncclResult_t error = ncclSuccess;
  std::string message;
  std::vector<ncclComm_t*> inits;
  std::vector<std::pair<Communicator*, Ending>> endings;
};

thread_local GroupState group;

// Takes back the communicators whose init failed, so that nobody holds a handle to them.
void drop_failed_inits(const std::vector<ncclComm_t*>& inits) {
  for (ncclComm_t* out : inits) {
    Communicator* communicator = find(*out);
    if (communicator == nullptr || communicator->in_progress() || communicator->async_error().ok()) continue;
    release(*out);
    *out = nullptr;
    (void)Communicator::abort(communicator);
  }
}

Status run_endings(const std::vector<std::pair<Communicator*, Ending>>& endings) {
  Status first;
  for (const auto& [communicator, ending] : endings) {
    Status status = end_both(communicator, ending);
    if (first.ok()) first = std::move(status);
  }
  return first;
}

// What the real NCCL has to do, once ours has done its part: twins of new communicators, then the calls kept for it.
Status end_group_of_twins(const std::vector<ncclComm_t*>& inits, bool run) {
  std::vector<Communicator*> made;
  for (const ncclComm_t* out : inits)
    if (Communicator* communicator = find(*out); communicator != nullptr) made.push_back(communicator);
  const Status early = run ? make_early_twins(made) : Status();
  Status forwarded = end_forwarded_group(run && early.ok());
  return early.ok() ? std::move(forwarded) : early;
}

}  // namespace

ncclResult_t note_group_error(ncclResult_t error) {
  if (error != ncclInProgress && group.error == ncclSuccess && group_depth() > 0) {
    group.error = error;
    group.message = last_error();
    (void)group_error(Status(static_cast<Code>(error), group.message));
  }
  return error;
}

void note_group_init(ncclComm_t* out) { group.inits.push_back(out); }

void end_after_group(Communicator* communicator, Ending ending) { group.endings.emplace_back(communicator, ending); }

ncclResult_t ncclGroupStart() noexcept {
  group_start();
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() noexcept {
  if (group_depth() == 0) return invalid_usage("ncclGroupEnd", "no group is open: call ncclGroupStart first");
  const Status ran = group_end();
  if (group_depth() > 0) return report(ran);
  // The group is over whatever happened in it: the next one starts clean.
  const GroupState over = std::exchange(group, GroupState{});
  if (!ran.ok() && ran.code() != Code::InProgress) drop_failed_inits(over.inits);
  const bool good = over.error == ncclSuccess && (ran.ok() || ran.code() == Code::InProgress);
  const Status forwarded = end_group_of_twins(over.inits, good);
  const Status ended = run_endings(over.endings);
  if (over.error != ncclSuccess) {
    set_last_error(over.message);
    return over.error;
  }
  if (!ran.ok()) return report(ran);
  return report(forwarded.ok() ? ended : forwarded);
}

}  // namespace theseus::nccl_api
