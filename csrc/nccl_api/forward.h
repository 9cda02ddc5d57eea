// The functions that nccl_api.def marks `forward`: the device API and one-sided transfers, which only the real NCCL
// has. On a GPU they go to the twin of the communicator; on host memory they are refused.
//
// The twin is made by the first function that every rank calls: ncclCommWindowRegister, or ncclDevCommCreate. The
// others concern some ranks only, and come after one of these. In a group they run at its end, as the real NCCL's
// would.
#pragma once

#include <functional>

#include "nccl_api/include/nccl.h"
#include "nccl_api/include/nccl_device.h"
#include "nccl_api/real_nccl.h"
#include "runtime/communicator.h"

namespace theseus::nccl_api {

// Where the real NCCL can be asked, this process working on GPUs; null elsewhere. No communicator is needed for that.
const RealNccl* real_nccl_of_gpus();

// What a call names of ours.
struct Named {
  ncclComm_t comm = nullptr;
  bool has_comm = false;
  ncclWindow_t window = nullptr;
  bool has_window = false;

  void see(ncclComm_t argument) { comm = argument, has_comm = true; }
  void see(ncclWindow_t argument) { window = argument, has_window = true; }
  template <class Other>
  void see(const Other&) {}
};

// Checks what a call names, and runs it, with the twin of its communicator where it has one.
ncclResult_t forward_call(const char* function, const Named& named,
                          std::function<Status(const RealNccl&, ncclComm_t twin)> run);
// That version of the real NCCL does not have it.
Status lacks(const RealNccl& nccl, const char* function);

// Ours is replaced by its twin, all else goes as it is.
inline ncclComm_t as_real(ncclComm_t, ncclComm_t twin) { return twin; }
template <class Other>
Other as_real(Other argument, ncclComm_t) {
  return argument;
}

template <auto Function>
struct Forward {
  const char* name;

  template <class... Arguments>
  ncclResult_t operator()(Arguments... arguments) const noexcept {
    Named named;
    (named.see(arguments), ...);
    return forward_call(name, named, [name = name, arguments...](const RealNccl& nccl, ncclComm_t twin) {
      const auto function = nccl.*Function;
      if (function == nullptr) return lacks(nccl, name);
      return real_status(nccl, name, function(as_real(arguments, twin)...));
    });
  }
};

}  // namespace theseus::nccl_api
