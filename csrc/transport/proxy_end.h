// One end of a connection to a rank on another host, as this rank's kernels see it: a device::Link whose memory is
// pinned host memory of the rank. Kernels send and take messages there as they do in a block of a peer on the same host
// (Simple protocol; there are no lines); the proxy's thread moves them between there and a port of TcpLinks.
//
// announce() comes from any thread, all else from the proxy's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "device/kernel_abi.h"
#include "drivers/cuda/api.h"
#include "transport/port.h"

namespace theseus {

class ProxyEnd {
 public:
  // Slots of the staging memory. Few, as the ring of a port lies behind them.
  static constexpr uint32_t kSlots = 4;

  virtual ~ProxyEnd();
  ProxyEnd(const ProxyEnd&) = delete;
  ProxyEnd& operator=(const ProxyEnd&) = delete;

  // What kernels are given. Valid as long as the end.
  const device::Link& link() const { return link_; }

  // So many more messages will go this way: who waits for none would take the peer's goodbye for its death.
  void announce(uint64_t messages) { announced_.fetch_add(messages, std::memory_order_relaxed); }
  // Whether all that were announced are with the port, or with the kernel.
  bool settled() const { return moved_ == announced_.load(std::memory_order_relaxed); }

  // Moves what can move; whether anything did.
  virtual Result<bool> advance() = 0;

 protected:
  // Pinned memory of one end, cleared.
  static Result<void*> allocate(cuda::Driver& driver, uint32_t slot_bytes);
  // Takes the memory over.
  ProxyEnd(cuda::Driver& driver, void* memory, uint32_t slot_bytes);

  uint8_t* slot() const { return link_.slots + slot_index() * link_.slot_bytes; }
  device::U64* word() const { return link_.posted + slot_index(); }
  device::U64* taken() const { return link_.taken; }

  uint64_t moved_ = 0;  // messages

 private:
  uint64_t slot_index() const { return moved_ % link_.slot_count; }

  cuda::Driver& driver_;
  void* memory_;
  device::Link link_{};
  std::atomic<uint64_t> announced_{0};
};

// Messages of kernels to a peer.
class ProxySender final : public ProxyEnd {
 public:
  static Result<std::unique_ptr<ProxySender>> make(cuda::Driver& driver, uint32_t slot_bytes);
  // Before advance(); outlives it.
  void attach(SendPort* port) { port_ = port; }
  Result<bool> advance() override;

 private:
  using ProxyEnd::ProxyEnd;
  SendPort* port_ = nullptr;
  SignatureTag tag_;
};

// Messages of a peer to kernels.
class ProxyReceiver final : public ProxyEnd {
 public:
  static Result<std::unique_ptr<ProxyReceiver>> make(cuda::Driver& driver, uint32_t slot_bytes);
  void attach(RecvPort* port) { port_ = port; }
  Result<bool> advance() override;

 private:
  using ProxyEnd::ProxyEnd;
  RecvPort* port_ = nullptr;
};

}  // namespace theseus
