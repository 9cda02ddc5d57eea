// Segments of one host inside this process, one a local rank, as the runtime makes them.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "transport/segment.h"

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
  for (size_t rank = 0; rank < segments.size(); ++rank)
    segments[rank]->rank_page(static_cast<int>(rank)).pid = getpid();
  return segments;
}

}  // namespace theseus::testing
