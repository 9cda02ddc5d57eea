// The ranks of one host inside this process, connected as the runtime connects them.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "executor/program.h"
#include "transport/shm_port.h"
#include "unit/transport/shm_testing.h"

namespace theseus::testing {

// One rank's ports.
class ShmRank final : public PortSource {
 public:
  ShmRank(Segment& segment, int rank, const ReferencePolicy& policy)
      : segment_(segment), rank_(rank), policy_(policy) {}

  Result<SendPort*> send_port(int peer, int, int channel) override {
    THESEUS_TRY(segment_.open_channel(channel));
    auto& port = sends_[{peer, channel}];
    if (port == nullptr) port = std::make_unique<ShmSendPort>(segment_, channel, rank_, peer, policy_);
    return port.get();
  }
  Result<RecvPort*> recv_port(int peer, int, int channel) override {
    THESEUS_TRY(segment_.open_channel(channel));
    auto& port = recvs_[{peer, channel}];
    if (port == nullptr) port = std::make_unique<ShmRecvPort>(segment_, channel, peer, rank_);
    return port.get();
  }
  Segment& segment() { return segment_; }

 private:
  Segment& segment_;
  int rank_;
  ReferencePolicy policy_;
  std::map<std::pair<int, int>, std::unique_ptr<ShmSendPort>> sends_;
  std::map<std::pair<int, int>, std::unique_ptr<ShmRecvPort>> recvs_;
};

class ShmWorld {
 public:
  explicit ShmWorld(const SegmentGeometry& geometry, const ReferencePolicy& policy = {})
      : segments_(make_segments(geometry)) {
    for (size_t rank = 0; rank < segments_.size(); ++rank) {
      ranks_.push_back(std::make_unique<ShmRank>(*segments_[rank], static_cast<int>(rank), policy));
    }
  }
  ShmRank& operator[](int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  int size() const { return static_cast<int>(ranks_.size()); }

 private:
  std::vector<std::unique_ptr<Segment>> segments_;
  std::vector<std::unique_ptr<ShmRank>> ranks_;
};

}  // namespace theseus::testing
