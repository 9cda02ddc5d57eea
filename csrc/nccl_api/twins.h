// The real NCCL's communicators: one, the twin, beside each of ours that something is handed over for. Their handles
// never leave nccl_api.
#pragma once

#include <vector>

#include "base/result.h"
#include "nccl_api/include/nccl.h"
#include "runtime/communicator.h"

namespace theseus::nccl_api {

// Makes the twins that are missing. Every rank of these communicators is in here, too, and this process's ranks of one
// communicator come in one call wherever one thread drives them: they join in one group of the real NCCL's, each on its
// own device. Communicators are taken one after another, in the order given, which is that of the calls that need them.
// Where one rank has no NCCL, or another version of it, nobody joins: all ranks fail alike, and *nobody is set.
Status make_twins(const std::vector<Communicator*>& communicators, bool* nobody = nullptr);

// The twin, or null.
ncclComm_t twin_of(const Communicator* communicator);
// The same, and it is the caller's to end.
ncclComm_t take_twin(const Communicator* communicator);

// Makes the GPU of a communicator the calling thread's, as the real NCCL wants it, and brings the thread's own back.
// Nothing on host memory.
class OnDevice {
 public:
  explicit OnDevice(const Communicator& communicator);
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice();
  const Status& status() const { return status_; }

 private:
  int before_ = -1;  // -1: nothing to bring back
  Status status_;
};

}  // namespace theseus::nccl_api
