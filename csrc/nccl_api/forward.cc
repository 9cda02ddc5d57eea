#include "nccl_api/forward.h"

#include <string>
#include <string_view>

#include "nccl_api/api.h"
#include "nccl_api/errors.h"
#include "nccl_api/fallback.h"
#include "nccl_api/groups.h"
#include "nccl_api/handles.h"
#include "nccl_api/real_handles.h"
#include "runtime/device_rank.h"

namespace theseus::nccl_api {
namespace {

bool works_on_gpus() {
  const Result<cuda::Driver*> driver = device_driver();
  return driver.ok() && *driver != nullptr && !(*driver)->emulated();
}

Status unknown_window(const char* function) {
  return Status::argument(std::string(function) +
                          ": the window was not made by the real NCCL, for this communicator: on GPUs "
                          "ncclCommWindowRegister makes such windows, where all ranks have the real NCCL");
}

// Where no communicator is named, the real NCCL is asked as it is.
ncclResult_t call_plainly(const char* function, const std::function<Status(const RealNccl&, ncclComm_t)>& run) {
  if (!real_nccl().ok()) {
    return fail(
        Status::usage(std::string(function) + " is done by the real NCCL alone: " + real_nccl().status().message()));
  }
  return report(run(*real_nccl(), nullptr));
}

}  // namespace

const RealNccl* real_nccl_of_gpus() { return works_on_gpus() && real_nccl().ok() ? &*real_nccl() : nullptr; }

Status lacks(const RealNccl& nccl, const char* function) {
  return Status::usage(std::string(function) + ": the real NCCL has none (version code " + std::to_string(nccl.code) +
                       ", " + nccl.path + "): name a newer one in THESEUS_NCCL");
}

ncclResult_t forward_call(const char* function, const Named& named,
                          std::function<Status(const RealNccl&, ncclComm_t)> run) {
  RealHandles& handles = RealHandles::all();
  if (!named.has_comm) {
    if (!works_on_gpus()) return unsupported(function);
    if (named.has_window && handles.owner(named.window) == nullptr) return fail(unknown_window(function));
    return call_plainly(function, run);
  }
  Communicator* communicator = usable(named.comm);
  if (communicator == nullptr) return note_group_error(refuse_handle(function, named.comm));
  if (!communicator->on_gpu()) return note_group_error(unsupported(function));
  if (named.has_window && handles.owner(named.window) != communicator) {
    return note_group_error(fail(unknown_window(function)));
  }
  ForTwin call{.function = function, .everyone = false, .run = std::move(run)};
  if (std::string_view(function) == "ncclDevCommCreate") {
    call.everyone = true;
    call.after = [communicator] { RealHandles::all().add_device_communicator(communicator); };
  } else if (std::string_view(function) == "ncclDevCommDestroy" && !handles.take_device_communicator(communicator)) {
    return note_group_error(invalid_argument(function, "devComm was not made for this communicator, or is gone"));
  }
  return give_to_twin(communicator, std::move(call));
}

}  // namespace theseus::nccl_api
