// What the real NCCL made for callers: a handle of its goes back to it alone, and one of ours never does. One table for
// the process; windows are the real NCCL's own handles, since kernels of the caller follow them.
#pragma once

#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "nccl_api/include/nccl.h"
#include "runtime/communicator.h"

namespace theseus::nccl_api {

class RealHandles {
 public:
  static RealHandles& all();

  void add_window(ncclWindow_t window, const Communicator* communicator);
  // Ours, beside whose twin the window was made; null where the real NCCL made no such window.
  const Communicator* owner(ncclWindow_t window);
  void remove_window(ncclWindow_t window);

  void add_device_communicator(const Communicator* communicator);
  // Whether one is left to destroy, which is then counted as gone.
  bool take_device_communicator(const Communicator* communicator);

  void add_memory(void* memory);
  // Whether the real NCCL allocated it; then it is the caller's to give back.
  bool take_memory(void* memory);

  // The communicator's twin ends, and all that it made.
  void forget(const Communicator* communicator);

 private:
  std::mutex mutex_;
  std::unordered_map<ncclWindow_t, const Communicator*> windows_;
  std::unordered_map<const Communicator*, int> device_communicators_;
  std::unordered_set<void*> memory_;
};

}  // namespace theseus::nccl_api
