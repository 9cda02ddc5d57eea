// Sends and receives of one communicator on its GPU: those of one group, or of one uneven all-to-all, as one launch on
// the caller's stream. Calls return at once; between two ranks transfers keep their order in each direction.
//
// The links are CudaDevice's, on channels that no plan has, so that the messages of plans and of transfers are numbered
// apart. They are made when a pair of ranks first uses them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "executor/cuda_execution.h"
#include "transport/port.h"

namespace theseus {

// Of Connection::channel; inside a host a transfer's `way` is added, between hosts it is the rail. Plans have those
// below.
inline constexpr int kTransferChannel = 1 << 14;

struct CudaTransfer {
  bool sends = false;
  int peer = 0;  // another rank
  void* data = nullptr;
  size_t bytes = 0;
  RequestSignature signature;  // what both ends must agree on; `rank` is this one
};

// What a rank sends itself.
struct CudaCopy {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
};

class CudaTransfers {
 public:
  // All outlive it. `ranks`, `rails`: of the communicator.
  CudaTransfers(CudaDevice& device, CudaKernels& kernels, CudaExecution& execution, int ranks, int rails);
  // Every kernel is done.
  ~CudaTransfers();
  CudaTransfers(const CudaTransfers&) = delete;
  CudaTransfers& operator=(const CudaTransfers&) = delete;

  // Makes what launch() needs of kernels and links, so that it waits for nobody.
  Status make_ready(const std::vector<CudaTransfer>& transfers);
  // Queues them all, behind what `streams` hold; what those hold later waits for them. `streams`: at least one, no two
  // alike. The kernel runs on the first.
  Status launch(const std::vector<CudaTransfer>& transfers, const std::vector<CudaCopy>& copies,
                const std::vector<cuda::Stream>& streams);

  // What a kernel of transfers found wrong, in words; ok where `word` (CudaDevice::fault) is none of theirs. From any
  // thread.
  Status fault(uint64_t word) const;

 private:
  struct Pinned;   // memory that a launch's lists lie in
  struct Pool;     // of such memory
  struct Filled {  // a launch
    device::TransferRequest request{};
    std::shared_ptr<Pinned> lists;  // null: they are in the request
    std::vector<ProxyUse> proxied;
  };
  // Links that a transfer's messages are dealt to; equal at both ends.
  uint32_t ways_of(const CudaTransfer& transfer) const;
  Connection connection_of(const CudaTransfer& transfer, uint32_t way) const;
  uint64_t messages_of(const std::vector<const CudaTransfer*>& queue, uint32_t way) const;
  Status fill(const std::vector<CudaTransfer>& transfers, Filled& filled);
  Status reserve_cursors(size_t lanes);
  Status run(Filled& filled, cuda::Stream stream);
  Status order(cuda::Stream first, cuda::Stream then);

  CudaDevice& device_;
  CudaKernels& kernels_;
  CudaExecution& execution_;
  int ranks_;
  int rails_;
  const CudaKernel* kernel_ = nullptr;
  device::TransferMismatch* found_ = nullptr;  // pinned; kMostCudaBlocks
  std::vector<DeviceMemory> cursors_;          // the last is in use, the others may still be
  std::shared_ptr<Pool> pool_;
  std::map<cuda::Stream, cuda::Event> events_;  // by the stream that they are recorded on
};

}  // namespace theseus
