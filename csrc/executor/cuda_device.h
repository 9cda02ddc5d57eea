// What a communicator has on its GPU, whatever plans it runs there: links to peers, counters, the words by which the
// host stops kernels and kernels tell the host what is wrong.
//
// A link lives as long as the communicator, like a port on the host: its counters outlive every migration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/result.h"
#include "device/kernel_abi.h"
#include "drivers/cuda/api.h"
#include "drivers/cuda/retired.h"
#include "executor/residency.h"
#include "schedule/plan.h"
#include "transport/p2p.h"
#include "transport/proxy.h"

namespace theseus {

// TBs of the largest grid that a communicator may launch.
inline constexpr uint32_t kMostCudaBlocks = 1024;

// How connections between devices are laid out; equal on all ranks.
struct CudaGeometry {
  uint32_t slot_bytes = 128 << 10;  // multiple of 64
  uint32_t slots = 8;
  uint32_t lines = 513;  // of an LL slot: 4 KB of data; 0: no LL, as where ranks are on several hosts

  size_t posted_at() const { return 256; }  // before it: how many messages a peer is done with
  size_t lines_at() const { return posted_at() + round_up(slots * sizeof(uint64_t)); }
  size_t slots_at() const { return lines_at() + round_up(size_t{slots} * lines * device::kLineBytes); }
  size_t block_bytes() const { return round_up(slots_at() + size_t{slots} * slot_bytes); }
  static size_t round_up(size_t bytes) { return (bytes + 255) / 256 * 256; }
};

// Memory of a device, given back at the end: then, or later (cuda::Retired). Whoever drops it has seen to it that no
// kernel uses it any more.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory() { reset(); }
  static Result<DeviceMemory> allocate(cuda::Driver& driver, int device, size_t bytes);

  void* get() const { return memory_; }
  size_t bytes() const { return bytes_; }
  void reset();

 private:
  cuda::Driver* driver_ = nullptr;
  int device_ = 0;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

class CudaDevice {
 public:
  // `links`: null with one rank. `sharers`: ranks of this communicator on this very GPU.
  static Result<std::unique_ptr<CudaDevice>> open(cuda::Driver& driver, int ordinal, const CudaGeometry& geometry,
                                                  std::unique_ptr<P2pLinks> links, const DeviceSharers& sharers);
  // No kernel of this communicator runs any more.
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  cuda::Driver& driver() const { return driver_; }
  int ordinal() const { return info_.ordinal; }
  const cuda::DeviceInfo& info() const { return info_; }
  const CudaGeometry& geometry() const { return geometry_; }
  // Ranks of this communicator on this GPU, this one included.
  int sharers() const { return sharers_; }
  // This rank among all that launch kernels on this GPU.
  Residency::Member& residency() { return *residency_; }
  const Residency::Member& residency() const { return *residency_; }
  cuda::Retired& retired() { return retired_; }
  // Whether plans get kernels of their own (THESEUS_KERNELS).
  bool generates() const { return generates_; }

  // Peers on other hosts are reached through `proxy`, from here on.
  void use_proxy(std::unique_ptr<Proxy> proxy) { proxy_ = std::move(proxy); }
  Proxy* proxy() const { return proxy_.get(); }  // null: all ranks are on one host
  bool is_far(int peer) const { return proxy_ != nullptr && !links_->is_local(peer); }

  // This rank's end of a connection, made when it is first asked for. `fresh`: it was.
  Result<device::Link*> link(const Connection& connection, bool& fresh);
  // The same end where the peer is on another host, else null. After link().
  ProxyEnd* proxy_end(const Connection& connection) const;
  // To be called before each launch on `stream` that moves messages over such ends; graphs call it anew when they run.
  Status announce(const std::vector<ProxyUse>& uses, uint64_t micro_batches, cuda::Stream stream);

  // Memory with `bytes` of `data` in it.
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
  void abort() {
    __atomic_store_n(&control_->abort, 1u, __ATOMIC_RELEASE);
    if (proxy_ != nullptr) proxy_->abort();
  }
  // What a kernel reported first; 0: nothing.
  uint64_t fault() const { return __atomic_load_n(&control_->fault, __ATOMIC_ACQUIRE); }

 private:
  struct alignas(64) Control {  // pinned host memory
    device::U32 abort;
    device::U64 fault;
  };
  using Connector = std::tuple<bool, int, int, int>;  // outgoing, peer, rail, channel

  CudaDevice(cuda::Driver& driver, const cuda::DeviceInfo& info, const CudaGeometry& geometry,
             const DeviceSharers& sharers)
      : driver_(driver),
        info_(info),
        geometry_(geometry),
        sharers_(sharers.ranks),
        retired_(cuda::Retired::of(driver, info.ordinal)),
        residency_(Residency::of(driver, info.ordinal).join(sharers)) {}
  Status prepare();
  Connector connector_of(const Connection& connection) const;
  Result<device::Link> describe(const Connection& connection);
  Result<device::Link> describe_far(const Connection& connection);

  cuda::Driver& driver_;
  cuda::DeviceInfo info_;
  CudaGeometry geometry_;
  int sharers_;
  cuda::Retired& retired_;
  std::unique_ptr<Residency::Member> residency_;
  bool generates_ = false;
  std::unique_ptr<P2pLinks> links_;
  std::unique_ptr<Proxy> proxy_;
  cuda::Stream stream_ = nullptr;
  Control* control_ = nullptr;
  DeviceMemory finished_;
  DeviceMemory progress_;
  std::vector<DeviceMemory> tables_;  // of links, kLinksPerTable each
  size_t links_used_ = 0;
  std::map<Connector, device::Link*> known_;
  std::map<Connector, ProxyEnd*> far_;
  struct Announcement {
    Proxy* proxy;
    std::vector<ProxyUse> uses;
    uint64_t micro_batches;
  };
  std::deque<Announcement> announcements_;  // in graphs
};

}  // namespace theseus
