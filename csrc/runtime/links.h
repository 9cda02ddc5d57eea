// Every connection of one communicator, whichever way it goes: shared memory inside a host, TCP between hosts.
#pragma once

#include <time.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "executor/program.h"
#include "net/star.h"
#include "runtime/peer.h"
#include "transport/segment.h"
#include "transport/shm_port.h"
#include "transport/tcp_links.h"

namespace theseus {

// process_vm_readv costs a system call: below this a copy through a slot is quicker.
inline constexpr size_t kSmallestFetch = 32 << 10;

// A rank that waits for sockets is not woken by a doorbell, so it looks at shared memory by itself: after these times
// at least and at most, and between them after as long as it has waited already. Many ranks that look often take the
// cores.
inline constexpr uint64_t kShortestMixedSleepNs = 50'000;
inline constexpr uint64_t kLongestMixedSleepNs = 1'000'000;

// The same without anything that could wake it.
inline void nap(uint64_t waited_ns) {
  const timespec time{0, static_cast<long>(std::clamp(waited_ns, kShortestMixedSleepNs, kLongestMixedSleepNs))};
  nanosleep(&time, nullptr);
}

class Links final : public PortSource {
 public:
  // `peers` by rank. Builds the host's segment together with the other local ranks (collective among them).
  static Result<std::unique_ptr<Links>> build(const CommId& communicator, int rank, const std::vector<Peer>& peers,
                                              const Topology& topology, const Deadline& deadline);
  ~Links() override;

  Result<SendPort*> send_port(int peer, int rail, int channel) override;
  Result<RecvPort*> recv_port(int peer, int rail, int channel) override;

  // The connections to other hosts, which are the taker's from here on; null where there are none.
  std::unique_ptr<TcpLinks> release_network() { return std::move(tcp_); }
  // Rails that data to `peer` can be spread over.
  int rails_to(int peer) const { return is_local(peer) ? 1 : topology_.rails; }
  bool is_local(int peer) const { return local_index_[peer] >= 0; }
  // Whether process_vm_readv works on every local peer (by trying it). Only if it does on all ranks may it be used.
  bool can_fetch() const;
  void allow_fetch(bool allowed) { fetch_allowed_ = allowed; }
  // Whether every local peer's memory is read directly for requests of `total` bytes a rank. Equal on all local ranks.
  bool fetches(size_t total) const { return fetch_allowed_ && total >= kSmallestFetch && total <= largest_fetch(); }
  const char* transport_to(int peer) const;
  size_t slot_bytes() const { return slot_bytes_; }
  int local_ranks() const { return local_ranks_; }
  // More local ranks than cores that they may run on: launchers may bind each to its own, so all masks count.
  bool crowded() const { return local_ranks_ > local_cores_; }
  Segment* segment() const { return segment_.get(); }  // null where this rank is alone on its host

  bool uses_network() const { return tcp_in_use_; }
  Status progress() { return tcp_in_use_ ? tcp_->progress() : Status(); }
  // Sleeps a short while, until something may have moved; `ready` is asked once more before. `waited_ns`: how long the
  // caller has found nothing so far.
  template <class Ready>
  void sleep(Ready&& ready, uint64_t waited_ns) {
    if (tcp_in_use_) {
      const uint64_t mixed = std::clamp(waited_ns, kShortestMixedSleepNs, kLongestMixedSleepNs);
      tcp_->wait(segment_ != nullptr ? static_cast<long>(mixed) : kLongestSleepNs);
    } else if (segment_ != nullptr) {
      sleep_on(segment_->rank_page(local_index_[rank_]), ready);
    } else {
      nap(waited_ns);
    }
  }
  Status flush(const Deadline& deadline) { return tcp_in_use_ ? tcp_->flush(deadline) : Status(); }
  // From here on the end of this process is no failure to the local peers.
  void leave() {
    if (segment_ != nullptr) segment_->rank_page(local_index_[rank_]).pid.store(0, std::memory_order_release);
  }
  // A local peer whose process is gone without leave(), or -1. For when the control star can no longer tell.
  int dead_local_peer() const;

 private:
  size_t largest_fetch() const;
  Status check_network() const;
  Links(int rank, const std::vector<Peer>& peers, const Topology& topology);
  Status build_segment(const CommId& communicator, const std::vector<Peer>& peers, const Deadline& deadline);
  Status share_segment(const CommId& communicator, const std::vector<int>& locals, const Deadline& deadline);
  Status fetch_segment(const CommId& communicator, int leader, const Peer& peer, const SegmentGeometry& geometry,
                       const Deadline& deadline);
  ReferencePolicy references_to(int peer) const;

  struct Pair {
    std::unique_ptr<ShmSendPort> send[kShmChannels];
    std::unique_ptr<ShmRecvPort> recv[kShmChannels];
    std::map<int, std::unique_ptr<ShmSendPort>> more_sends;  // channels from kShmChannels on
    std::map<int, std::unique_ptr<ShmRecvPort>> more_recvs;
  };

  int rank_;
  std::vector<Peer> peers_;
  Topology topology_;
  std::vector<int> local_index_;  // by rank; -1: on another host
  int local_ranks_ = 0;
  int local_cores_ = 1;
  size_t slot_bytes_ = 0;
  std::unique_ptr<Segment> segment_;
  std::vector<Pair> shm_;  // by rank
  std::unique_ptr<TcpLinks> tcp_;
  bool tcp_in_use_ = false;
  bool fetch_allowed_ = false;
};

}  // namespace theseus
