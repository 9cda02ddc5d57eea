// The ranks of one host inside this process: a segment each, as the runtime makes them, and the ports between them.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "executor/program.h"
#include "transport/segment.h"
#include "transport/shm_port.h"

namespace theseus::testing {

inline SegmentGeometry geometry_of(int ranks, int slots = kMaxSlots, size_t slot_bytes = 4096) {
  return {static_cast<uint32_t>(ranks), static_cast<uint32_t>(slots), static_cast<uint32_t>(slot_bytes)};
}

// A segment for local rank 0, and one attached to the same memory for each of the others.
inline std::vector<std::unique_ptr<Segment>> make_segments(const SegmentGeometry& geometry) {
  std::vector<std::unique_ptr<Segment>> segments;
  Result<std::unique_ptr<Segment>> first = Segment::create(geometry);
  EXPECT_TRUE(first.ok()) << first.status().message();
  segments.push_back(std::move(*first));
  while (segments.size() < geometry.ranks) {
    Result<std::unique_ptr<Segment>> next = Segment::attach(dup(segments[0]->fd()), geometry);
    EXPECT_TRUE(next.ok()) << next.status().message();
    segments.push_back(std::move(*next));
  }
  for (size_t rank = 0; rank < segments.size(); ++rank) segments[rank]->rank_page(static_cast<int>(rank)).pid = getpid();
  return segments;
}

// One rank's ports.
class ShmRank final : public PortSource {
 public:
  ShmRank(Segment& segment, int rank, const ReferencePolicy& policy) : segment_(segment), rank_(rank), policy_(policy) {}

  Result<SendPort*> send_port(int peer, int, int channel) override {
    auto& port = sends_[{peer, channel}];
    if (port == nullptr) port = std::make_unique<ShmSendPort>(segment_, channel, rank_, peer, policy_);
    return port.get();
  }
  Result<RecvPort*> recv_port(int peer, int, int channel) override {
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
