// Requests of one communicator on its GPU: each a launch on the user's stream, behind the communicator's request before
// it, whatever stream that was on. Calls return at once.
//
// What a request works with is held (`Hold`) until its kernels are done; collect() lets go of that.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "executor/cuda_builder.h"
#include "executor/execution.h"

namespace theseus {

struct CudaCall {
  CudaResources resources;
  Binding binding;                  // of the buffers that the plan works on; piece_bytes is not looked at
  const void* scalar_at = nullptr;  // of the factor of what is read from Input, if binding.scalar is null
  int divide_by = 0;                // integer Avg: what Output is divided by; 0: nothing
  size_t output_elements = 0;
};

class CudaExecution {
 public:
  // Both outlive it.
  CudaExecution(CudaDevice& device, CudaKernels& kernels) : device_(device), kernels_(kernels) {}
  // Every kernel is done.
  ~CudaExecution();
  CudaExecution(const CudaExecution&) = delete;
  CudaExecution& operator=(const CudaExecution&) = delete;

  // Between these two a request may queue any work on `stream`.
  Status begin(cuda::Stream stream);
  Status end(cuda::Stream stream, ResourceTree::Lease lease, const CudaSchedule& schedule);
  // The same for a request without a plan; `held` is what it works with.
  Status end(cuda::Stream stream, std::shared_ptr<void> held);
  // Before a launch whose TBs wait for those of other ranks: see Residency.
  Status admit(uint64_t blocks, uint64_t resident, cuda::Stream stream);
  // Queues the kernels of a request.
  Status launch(const CudaCall& call, cuda::Stream stream);

  // Lets go of what requests held that are done by now.
  Status collect();
  // Waits until all are done: with CudaDevice::abort() before it, without peers.
  Status settle();
  // Whether all that was launched is done.
  Result<bool> idle();

  // What a kernel found wrong, in words, once one did.
  Status fault() const;

 private:
  struct UnderWay {
    cuda::Event done;
    ResourceTree::Lease lease;
    std::shared_ptr<void> held;
    int launches;  // of those that wait for other ranks
  };
  Result<cuda::Event> take_event();
  Status end(cuda::Stream stream, UnderWay request);
  // The kernels of a request are done.
  void let_go(const UnderWay& request);

  CudaDevice& device_;
  CudaKernels& kernels_;
  std::deque<UnderWay> under_way_;  // in order
  std::vector<UnderWay> captured_;  // graphs may run them again and again, so these stay
  std::vector<cuda::Event> free_;
  std::optional<cuda::Stream> last_stream_;  // of the newest request that is under way
  bool capturing_ = false;                   // between begin() and end()
  int launches_ = 0;                         // likewise
  mutable std::mutex newest_mutex_;          // of what follows: fault() is called from any thread
  std::string newest_plan_;
  std::vector<int> newest_peers_;  // by connection
};

}  // namespace theseus
