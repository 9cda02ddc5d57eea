// Time to execution: from a collective's call to its first instruction, request by request, with what happened between
// (Theseus, Table 3). Recorded only where somebody asked for it.
#pragma once

#include <time.h>

#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace theseus {

// What a request met before it ran; several may.
enum class TteEvent : uint8_t {
  Selection = 1,   // chose anew: nothing was remembered of an equal call
  Agreement = 2,   // took part in an agreement, or installed one
  Wait = 4,        // had to wait for an agreement
  Setup = 8,       // made the resources of a schedule from nothing
  Migration = 16,  // made those that differ from what another schedule had there
};

struct TteSample {
  uint32_t wall_ns = 0;
  uint32_t cpu_ns = 0;  // of the calling thread
  uint8_t events = 0;   // TteEvent, or-ed
};

class TteRecorder {
 public:
  // Room for `capacity` requests; later ones are not recorded.
  explicit TteRecorder(size_t capacity) { samples_.reserve(capacity); }

  void begin() {
    events_ = 0;
    cpu_ = thread_ns();
    wall_ = now_ns();
  }
  void note(TteEvent event) { events_ |= static_cast<uint8_t>(event); }
  void end() {
    if (wall_ == 0 || samples_.size() == samples_.capacity()) return;
    const uint64_t wall = now_ns();
    samples_.push_back({short_ns(wall - wall_), short_ns(thread_ns() - cpu_), events_});
    wall_ = 0;
  }
  const std::vector<TteSample>& samples() const { return samples_; }

 private:
  static uint32_t short_ns(uint64_t ns) { return ns > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(ns); }
  static uint64_t thread_ns() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
  }

  std::vector<TteSample> samples_;
  uint64_t wall_ = 0;
  uint64_t cpu_ = 0;
  uint8_t events_ = 0;
};

}  // namespace theseus
