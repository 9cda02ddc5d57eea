// What an executor does for the resource tree: it makes the parts that the tree keeps (Theseus, "Switching cheaply").
//
//   L0 Global     one a communicator: the arena that all schedules work in, queues
//   L1 Schedule   a family of schedules, of which each replaced another: synchronisation
//   L2 Buffer     handles and connections
//   L3 Range      offsets of instructions
//
// A part is made for one schedule, its tag. A part holds by shared ownership whatever it needs of the parts above it:
// those may be migrated to another schedule, and back, while it stays.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"

namespace theseus {

enum class Layer : uint8_t { Global, Schedule, Buffer, Range };
inline constexpr size_t kLayers = 4;
const char* name_of(Layer layer);

// What the user's memory is, as far as connections depend on it. A buffer that was freed and made again keeps its id
// and gets a new generation.
struct BufferKey {
  uint64_t id = 0;
  uint64_t generation = 0;
};

// What offsets depend on: a range of the buffer, and a form, which means something to the executor alone.
struct RangeKey {
  uint64_t offset = 0;
  uint64_t length = 0;
  uint64_t form = 0;
  auto operator<=>(const RangeKey&) const = default;
};

struct ResourceRequest {
  uint64_t family = 0;    // the schedule at the root of the chain of replacements (and its root rank, where it has one)
  uint64_t schedule = 0;  // the one selected: the tag
  BufferKey buffer;
  RangeKey range;
};

// What one vertex of the tree holds.
class Part {
 public:
  virtual ~Part() = default;
  virtual size_t bytes() const = 0;  // with what it shares with others, so that a sum is rather too high
};

// By layer; null from the one on that is being made.
using Parts = std::array<std::shared_ptr<Part>, kLayers>;

// How much of a part was made, and how much taken over from what was there.
struct Delta {
  uint64_t made = 0;    // thread blocks
  uint64_t shared = 0;  // thread blocks
  uint64_t opened = 0;  // connections
  uint64_t kept = 0;    // connections
  void add(const Delta& other) {
    made += other.made;
    shared += other.shared;
    opened += other.opened;
    kept += other.kept;
  }
};

class Builder {
 public:
  virtual ~Builder() = default;

  // `above` is up to date for the request. Adds to `delta`.
  virtual Result<std::shared_ptr<Part>> build(Layer layer, const ResourceRequest& request, const Parts& above,
                                              Delta& delta) = 0;
  // The same, where `old` was made for another schedule of the family. In use: it stays as it is. Not in use: it may be
  // changed and returned, or taken apart. On failure it is as before.
  virtual Result<std::shared_ptr<Part>> migrate(Layer layer, const ResourceRequest& request, const Parts& above,
                                                const std::shared_ptr<Part>& old, bool in_use, Delta& delta) = 0;

  // Bytes of the arena that a request with these parts works in. `parts` is complete.
  virtual size_t arena_need(const Parts& parts) const = 0;
  virtual size_t arena_size(const Part& global) const = 0;
  // The global part with an arena of `bytes`, whose contents need not survive. In use: a new one.
  virtual Result<std::shared_ptr<Part>> resize_arena(const std::shared_ptr<Part>& global, bool in_use,
                                                     size_t bytes) = 0;
  // A walk is over: what was kept from one layer to the next may go.
  virtual void walked() {}
};

}  // namespace theseus
