// Which schedule the requests of a communicator run, by collective and size class: the newest selection of each.
//
// Kept where a selection is made. Requests that reuse a remembered one do not come here, and one that chooses the same
// schedule again compares two numbers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace theseus {

enum class ScheduleOrigin : uint8_t { BuiltIn, Context, Loaded };  // Loaded: the caller named the plan

// Class c: requests of 2^c to 2^(c+1) - 1 bytes, counted over all ranks as policies do (`bytes`).
struct SelectionRow {
  Collective collective = Collective::AllReduce;
  uint32_t size_class = 0;
  ScheduleOrigin origin = ScheduleOrigin::BuiltIn;
  bool may_share = false;  // large requests may go over shared buffers, around the plan
  uint64_t since = 0;      // the request id from which on it was chosen
  std::string schedule;
};

class SelectionTable {
 public:
  struct Choice {
    uint64_t tag = 0;  // names the schedule for as long as the communicator lives
    std::string_view schedule;
    ScheduleOrigin origin = ScheduleOrigin::BuiltIn;
    bool may_share = false;
  };
  // By one thread at a time. `bytes`: at least 1.
  void note(Collective collective, uint64_t bytes, const Choice& choice, uint64_t request);

  // From any thread: what was noted at least once, by collective and class.
  std::vector<SelectionRow> rows() const;

 private:
  static constexpr size_t kClasses = 64;
  struct Place {
    uint64_t tag = 0;
    SelectionRow row;
  };
  mutable std::mutex mutex_;  // taken by note() only where something changes, so readers never see a half
  std::array<std::array<std::unique_ptr<Place>, kClasses>, kCollectives> places_;
};

}  // namespace theseus
