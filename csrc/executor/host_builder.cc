#include "executor/host_builder.h"

#include <utility>

namespace theseus {
namespace {

template <class T>
const T& part_at(const Parts& parts, Layer layer) {
  return static_cast<const T&>(*parts[static_cast<size_t>(layer)]);
}

}  // namespace

class HostBuilder::Counting final : public PortSource {
 public:
  Counting(HostBuilder& builder, Delta& delta) : builder_(builder), delta_(delta) {}
  Result<SendPort*> send_port(int peer, int rail, int channel) override {
    Result<SendPort*> port = builder_.ports_.send_port(peer, rail, channel);
    if (port.ok()) count({true, peer, rail, channel});
    return port;
  }
  Result<RecvPort*> recv_port(int peer, int rail, int channel) override {
    Result<RecvPort*> port = builder_.ports_.recv_port(peer, rail, channel);
    if (port.ok()) count({false, peer, rail, channel});
    return port;
  }

 private:
  void count(const Connector& connector) {
    ++(builder_.opened_.insert(connector).second ? delta_.opened : delta_.kept);
  }
  HostBuilder& builder_;
  Delta& delta_;
};

HostBuilder::HostBuilder(int rank, PortSource& ports, ScheduleSource& schedules)
    : rank_(rank), ports_(ports), schedules_(schedules) {}

RangeKey HostBuilder::range_of(size_t count, DataType type, RedOp op) {
  return {0, count, static_cast<uint64_t>(type) << 8 | static_cast<uint64_t>(op)};
}

ShapeKey HostBuilder::shape_key_of(const RangeKey& range) {
  return {range.length, 0, static_cast<DataType>(range.form >> 8), static_cast<RedOp>(range.form & 0xff)};
}

Result<std::shared_ptr<Part>> HostBuilder::build(Layer layer, const ResourceRequest& request, const Parts& above,
                                                 Delta& delta) {
  switch (layer) {
    case Layer::Global: return std::shared_ptr<Part>(std::make_shared<HostGlobal>());
    case Layer::Schedule: return schedule_part(request, nullptr);
    // Bound for another buffer already: then its thread blocks serve here as well.
    case Layer::Buffer:
      return program_part(request, above, part_at<HostSchedule>(above, Layer::Schedule).latest.lock().get(), delta);
    case Layer::Range: return shape_part(request, above);
  }
  return Status::internal("no such layer");
}

// Parts never change but for the global one, so that nothing depends on whether the old one is in use: what it shares
// with the new one stays as long as either does.
Result<std::shared_ptr<Part>> HostBuilder::migrate(Layer layer, const ResourceRequest& request, const Parts& above,
                                                   const std::shared_ptr<Part>& old, bool, Delta& delta) {
  switch (layer) {
    case Layer::Global: return old;
    case Layer::Schedule: return schedule_part(request, static_cast<HostSchedule&>(*old).order.get());
    case Layer::Buffer: {
      const std::shared_ptr<const Program> latest = part_at<HostSchedule>(above, Layer::Schedule).latest.lock();
      const Program* previous = latest != nullptr ? latest.get() : static_cast<HostProgram&>(*old).program.get();
      return program_part(request, above, previous, delta);
    }
    case Layer::Range: return shape_part(request, above);
  }
  return Status::internal("no such layer");
}

Result<SchedulePlan> HostBuilder::plan_of(uint64_t schedule) {
  if (plan_.plan == nullptr || plan_schedule_ != schedule) {
    Result<SchedulePlan> found = schedules_.plan_of(schedule);
    if (!found.ok()) return found.status();
    plan_ = std::move(*found);
    plan_schedule_ = schedule;
  }
  return plan_;
}

Result<std::shared_ptr<Part>> HostBuilder::schedule_part(const ResourceRequest& request,
                                                         const Synchronisation* previous) {
  Result<SchedulePlan> source = plan_of(request.schedule);
  if (!source.ok()) return source.status();
  Result<const RankPlan*> own = Program::part_of(*source->plan, rank_);
  if (!own.ok()) return own.status();
  auto part = std::make_shared<HostSchedule>();
  part->order = Synchronisation::of(*source->plan, **own, source->share_slots, previous);
  return std::shared_ptr<Part>(std::move(part));
}

Result<std::shared_ptr<Part>> HostBuilder::program_part(const ResourceRequest& request, const Parts& above,
                                                        const Program* previous, Delta& delta) {
  Result<SchedulePlan> source = plan_of(request.schedule);
  if (!source.ok()) return source.status();
  Result<const RankPlan*> own = Program::part_of(*source->plan, rank_);
  if (!own.ok()) return own.status();
  HostSchedule& schedule = static_cast<HostSchedule&>(*above[static_cast<size_t>(Layer::Schedule)]);
  Counting ports(*this, delta);
  Result<std::unique_ptr<Program>> program =
      Program::bind(*source->plan, **own, *schedule.order, ports, previous, &delta);
  if (!program.ok()) return program.status();
  auto part = std::make_shared<HostProgram>();
  part->program = std::move(*program);
  schedule.latest = part->program;
  return std::shared_ptr<Part>(std::move(part));
}

std::shared_ptr<Part> HostBuilder::shape_part(const ResourceRequest& request, const Parts& above) {
  const Program& program = *part_at<HostProgram>(above, Layer::Buffer).program;
  auto part = std::make_shared<HostShape>();
  ShapeKey key = shape_key_of(request.range);
  key.piece_bytes = part->piece_bytes = schedules_.piece_bytes(program, request);
  part->shape = shape_of(program, key);
  return part;
}

size_t HostBuilder::arena_need(const Parts& parts) const {
  return part_at<HostShape>(parts, Layer::Range).shape.scratch_bytes;
}

size_t HostBuilder::arena_size(const Part& global) const {
  return static_cast<const HostGlobal&>(global).execution.arena_bytes();
}

Result<std::shared_ptr<Part>> HostBuilder::resize_arena(const std::shared_ptr<Part>& global, bool in_use,
                                                        size_t bytes) {
  const std::shared_ptr<Part> part = in_use ? std::make_shared<HostGlobal>() : global;
  static_cast<HostGlobal&>(*part).execution.resize_arena(bytes);
  return part;
}

HostResources host_resources(const ResourceTree::Lease& lease) {
  auto& global = lease.part<HostGlobal>(Layer::Global);
  return {&global.execution, &global.staging, lease.part<HostProgram>(Layer::Buffer).program.get(),
          &lease.part<HostShape>(Layer::Range).shape};
}

}  // namespace theseus
