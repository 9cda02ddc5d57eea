// The resource tree's builder for the host executor: what the four layers hold where TBs are resumable programs and
// connections belong to the communicator.
//
//   L0 Global     an Execution: the arena for Scratch, states of thread blocks; and room for staged copies
//   L1 Schedule   Synchronisation: loops, waits, groups of copies
//   L2 Buffer     a Program: the thread blocks bound to connections
//   L3 Range      a Shape: pieces and offsets
//
// A connection is opened when the first program needs it and is never closed before its communicator, so its counters
// outlive every migration. On the host it does not depend on the user's buffer: one BufferKey serves for all.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "executor/execution.h"
#include "executor/program.h"
#include "executor/shape.h"
#include "resource/builder.h"
#include "resource/tree.h"

namespace theseus {

// A schedule's plan with this rank's section. Shared, so that it stays while resources are made from it.
struct SchedulePlan {
  std::shared_ptr<const Plan> plan;
  bool share_slots = true;  // see Program::build
};

// What the builder asks its communicator.
class ScheduleSource {
 public:
  virtual ~ScheduleSource() = default;
  virtual Result<SchedulePlan> plan_of(uint64_t schedule) = 0;
  // Longest message, in bytes; equal on all ranks.
  virtual size_t piece_bytes(const Program& program, const ResourceRequest& request) = 0;
};

struct HostGlobal final : Part {
  size_t bytes() const override { return sizeof *this + execution.bytes() + staging.capacity(); }
  Execution execution;
  std::vector<uint8_t> staging;  // for whoever runs requests on copies of their buffers
};

struct HostSchedule final : Part {
  size_t bytes() const override { return sizeof *this + order->bytes(); }
  std::shared_ptr<const Synchronisation> order;
  std::weak_ptr<const Program> latest;  // bound last, for another buffer perhaps
};

struct HostProgram final : Part {
  size_t bytes() const override { return sizeof *this + program->bytes(); }
  std::shared_ptr<const Program> program;
};

struct HostShape final : Part {
  size_t bytes() const override { return sizeof *this; }
  Shape shape;
  size_t piece_bytes = 0;
};

class HostBuilder final : public Builder {
 public:
  // `ports` and `schedules` outlive it.
  HostBuilder(int rank, PortSource& ports, ScheduleSource& schedules);

  // The key of a request's range, and back; piece_bytes stays 0 there.
  static RangeKey range_of(size_t count, DataType type, RedOp op);
  static ShapeKey shape_key_of(const RangeKey& range);

  Result<std::shared_ptr<Part>> build(Layer layer, const ResourceRequest& request, const Parts& above,
                                      Delta& delta) override;
  Result<std::shared_ptr<Part>> migrate(Layer layer, const ResourceRequest& request, const Parts& above,
                                        const std::shared_ptr<Part>& old, bool in_use, Delta& delta) override;
  size_t arena_need(const Parts& parts) const override;
  size_t arena_size(const Part& global) const override;
  Result<std::shared_ptr<Part>> resize_arena(const std::shared_ptr<Part>& global, bool in_use, size_t bytes) override;
  void walked() override { plan_ = {}; }

  // Connections opened so far.
  size_t connections() const { return opened_.size(); }

 private:
  // Hands out the communicator's ports, and counts which of them are new.
  class Counting;
  using Connector = std::tuple<bool, int, int, int>;  // outgoing, peer, rail, channel

  Result<SchedulePlan> plan_of(uint64_t schedule);
  Result<std::shared_ptr<Part>> schedule_part(const ResourceRequest& request, const Synchronisation* previous);
  Result<std::shared_ptr<Part>> program_part(const ResourceRequest& request, const Parts& above,
                                             const Program* previous, Delta& delta);
  std::shared_ptr<Part> shape_part(const ResourceRequest& request, const Parts& above);

  int rank_;
  PortSource& ports_;
  ScheduleSource& schedules_;
  std::set<Connector> opened_;
  uint64_t plan_schedule_ = 0;
  SchedulePlan plan_;  // of plan_schedule_, for the length of a walk; or null
};

// What a lease of a tree with a HostBuilder holds. Valid as long as the lease.
struct HostResources {
  Execution* execution;
  std::vector<uint8_t>* staging;
  const Program* program;
  const Shape* shape;
};
HostResources host_resources(const ResourceTree::Lease& lease);

}  // namespace theseus
