// One rank's side of a communicator whose buffers are a GPU's: opened when the ranks have met, null on the host.
// Used under the communicator's lock, but for abort() and fault().
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "executor/cuda_execution.h"
#include "executor/cuda_transfer.h"
#include "runtime/communicator.h"
#include "runtime/peer.h"
#include "schedule/topology.h"

namespace theseus {

struct Request;

// The driver that THESEUS_DEVICE asks for: cuda, or cuda-emu; null where it says host, or auto, which is the host in
// this release.
Result<cuda::Driver*> device_driver();
// The GPU of the calling thread, as a communicator made there would use it; -1 on the host.
Result<int> device_of_thread();

class DeviceRank {
 public:
  // `ordinal`: of the GPU. `peers` by rank; empty with one rank. `slot_bytes`: equal on all ranks.
  static Result<std::unique_ptr<DeviceRank>> open(const CommId& communicator, int rank, const std::vector<Peer>& peers,
                                                  const Topology& topology, int ordinal, size_t slot_bytes);
  // Every kernel is done.
  ~DeviceRank();
  // Connections to other hosts, which are this rank's from here on, and whom to tell when they fail: on a thread of its
  // own, until close().
  void use_network(std::unique_ptr<TcpLinks> network, std::function<void(const Status&)> on_failure);

  CudaDevice& device() { return *device_; }
  CudaKernels& kernels() { return *kernels_; }

  // Whether kernels may follow a call's pointers. From any thread.
  Status check_buffers(const CollectiveCall& call, const BufferShape& shape) const;
  Status check_buffer(const char* name, const void* pointer) const;
  // What a launch would have to wait for otherwise.
  Status make_ready(const Request& request);
  // Queues the request on `stream`; `lease` is held until it is done. `divide_by`: see CudaCall.
  Status launch(Request& request, ResourceTree::Lease lease, void* stream, int ranks);

  // Sends and receives.
  CudaTransfers& transfers() { return *transfers_; }

  // Whether all that was launched is done.
  Result<bool> idle() { return execution_->idle(); }
  // What kernels that are done sent to other hosts is on its way.
  Status flush(const Deadline& deadline);
  // Waits for kernels: with abort() before it, without peers. Nobody hears of failures any more.
  void close();
  // From any thread: kernels that wait for peers leave.
  void abort() { device_->abort(); }
  Status fault() const {
    Status transfers = transfers_->fault(device_->fault());
    return transfers.ok() ? execution_->fault() : transfers;
  }

  // One byte in the GPU's memory, for a barrier.
  void* barrier_byte() const { return barrier_.get(); }

 private:
  // See Staging.
  Status enter(const Request& request, Binding& staged, cuda::Stream stream);
  Status leave(const Request& request, const Binding& staged, cuda::Stream stream);
  Status copy_blocks(const Request& request, const Binding& staged, bool in, cuda::Stream stream);

  std::unique_ptr<CudaDevice> device_;
  CudaKernels* kernels_ = nullptr;
  std::unique_ptr<CudaExecution> execution_;
  std::unique_ptr<CudaTransfers> transfers_;
  DeviceMemory barrier_;
  std::vector<DeviceMemory> staging_;  // the last one is in use, the others may still be
};

}  // namespace theseus
