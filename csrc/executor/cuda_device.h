// What a communicator has on its GPU, whatever plans it runs there: links to peers, counters, the words by which the
// host stops kernels and kernels tell the host what is wrong.
//
// A link lives as long as the communicator, like a port on the host: its counters outlive every migration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/result.h"
#include "device/kernel_abi.h"
#include "drivers/cuda/api.h"
#include "executor/device_memory.h"
#include "schedule/plan.h"
#include "transport/p2p.h"

namespace theseus {

// TBs of the largest grid that a communicator may launch.
inline constexpr uint32_t kMostCudaBlocks = 1024;

// How connections between devices are laid out; equal on all ranks.
struct CudaGeometry {
  uint32_t slot_bytes = 128 << 10;  // multiple of 64
  uint32_t slots = 8;
  uint32_t lines = 513;  // of an LL slot: 4 KB of data

  size_t posted_at() const { return 256; }  // before it: how many messages a peer is done with
  size_t lines_at() const { return posted_at() + round_up(slots * sizeof(uint64_t)); }
  size_t slots_at() const { return lines_at() + round_up(size_t{slots} * lines * device::kLineBytes); }
  size_t block_bytes() const { return round_up(slots_at() + size_t{slots} * slot_bytes); }
  static size_t round_up(size_t bytes) { return (bytes + 255) / 256 * 256; }
};

class CudaDevice {
 public:
  // `links`: null with one rank. `sharers`: ranks of this communicator on this very GPU, this one included.
  static Result<std::unique_ptr<CudaDevice>> open(cuda::Driver& driver, int ordinal, const CudaGeometry& geometry,
                                                  std::unique_ptr<P2pLinks> links, int sharers);
  // No kernel of this communicator runs any more.
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  cuda::Driver& driver() const { return driver_; }
  int ordinal() const { return info_.ordinal; }
  const cuda::DeviceInfo& info() const { return info_; }
  const CudaGeometry& geometry() const { return geometry_; }
  int sharers() const { return sharers_; }
  // Whether plans get kernels of their own (THESEUS_KERNELS).
  bool generates() const { return generates_; }

  // This rank's end of a connection, made when it is first asked for. `fresh`: it was.
  Result<device::Link*> link(const Connection& connection, bool& fresh);

  // Memory for requests, which may go while others are under way. What is in it is left to chance.
  Result<DeviceMemory> allocate(size_t bytes) { return DeviceMemory::allocate(shelf_, bytes); }
  // The same with `bytes` of `data` in it.
  Result<DeviceMemory> upload(const void* data, size_t bytes);
  // Memory that is zero.
  Result<DeviceMemory> zeroed(size_t bytes);
  // Waits for a copy that is no part of a request.
  Status copy_now(void* to, const void* from, size_t bytes);

  device::Progress* progress() const { return static_cast<device::Progress*>(progress_.get()); }
  const device::U32* abort_word() const { return &control_->abort; }
  device::U64* fault_word() const { return &control_->fault; }
  cuda::Stream stream() const { return stream_; }  // of this communicator's own work

  // Kernels under way leave, those to come leave at once. From any thread.
  void abort() { __atomic_store_n(&control_->abort, 1u, __ATOMIC_RELEASE); }
  // What a kernel reported first; 0: nothing.
  uint64_t fault() const { return __atomic_load_n(&control_->fault, __ATOMIC_ACQUIRE); }

 private:
  struct alignas(64) Control {  // pinned host memory
    device::U32 abort;
    device::U64 fault;
  };
  using Connector = std::tuple<bool, int, int>;  // outgoing, peer, channel

  CudaDevice(cuda::Driver& driver, const cuda::DeviceInfo& info, const CudaGeometry& geometry, int sharers)
      : driver_(driver),
        info_(info),
        geometry_(geometry),
        sharers_(sharers),
        shelf_(std::make_shared<DeviceShelf>(driver, info.ordinal)) {}
  Status prepare();
  Result<device::Link> describe(const Connection& connection);

  cuda::Driver& driver_;
  cuda::DeviceInfo info_;
  CudaGeometry geometry_;
  int sharers_;
  bool generates_ = false;
  std::shared_ptr<DeviceShelf> shelf_;
  std::unique_ptr<P2pLinks> links_;
  cuda::Stream stream_ = nullptr;
  Control* control_ = nullptr;
  DeviceMemory finished_;
  DeviceMemory progress_;
  std::vector<DeviceMemory> tables_;  // of links, kLinksPerTable each
  size_t links_used_ = 0;
  std::map<Connector, device::Link*> known_;
};

}  // namespace theseus
