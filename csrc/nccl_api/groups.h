// What the C API itself keeps for the calling thread's group; the queue of calls is the runtime's.
#pragma once

#include "nccl_api/include/nccl.h"
#include "runtime/communicator.h"

namespace theseus::nccl_api {

// Inside a group, a call that was refused makes ncclGroupEnd fail too: the first such error is kept. Returns `error`.
ncclResult_t note_group_error(ncclResult_t error);

// A communicator made inside a group is known to work only at its end: when it does not, *out becomes NULL there.
void note_group_init(ncclComm_t* out);

enum class Ending { Destroy, Abort };
// Inside a group, calls may be queued on the communicator: it ends after they have run.
void end_after_group(Communicator* communicator, Ending ending);

}  // namespace theseus::nccl_api
