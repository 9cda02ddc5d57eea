// Time to execution of requests picked at random, always on, for whoever watches a job that runs.
//
// Nothing is asked of the requests between: the next one to be timed is a request id, and ids are compared with the
// next event anyway. Gaps are drawn, so that rare events count as often as they are, and grow with the rate of
// requests.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace theseus {

// Of the newest samples; all zero before there is one.
struct TteQuantiles {
  uint64_t samples = 0;  // taken so far
  uint32_t p50_ns = 0;
  uint32_t p99_ns = 0;
};

class TteSamples {
 public:
  static constexpr size_t kKept = 1024;

  // --- by one thread at a time
  // The id of the next request to be timed.
  uint64_t next() const { return next_; }
  // Request `id` was called, now, and is timed; draws the next one.
  void begin(uint64_t id, uint64_t now_ns);
  // The request whose id ends so runs its first instruction. Any other than the one begun says that that one went
  // another way (in a group, or not at all): nothing is counted.
  void end(uint32_t id, uint64_t now_ns);

  // From any thread, at any time.
  TteQuantiles quantiles() const;

 private:
  uint64_t next_ = 1;
  bool under_way_ = false;
  uint32_t begun_ = 0;     // the low half of an id
  uint64_t begun_ns_ = 0;  // 0: never
  uint64_t gap_ = 1;       // mean, in requests
  std::array<std::atomic<uint32_t>, kKept> ring_ = {};
  std::atomic<uint64_t> count_{0};
};

}  // namespace theseus
