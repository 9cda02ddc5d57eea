#include "executor/cuda_builder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "compiler/flatten.h"
#include "schedule/places.h"

namespace theseus {
namespace {

template <class T>
const T& part_at(const Parts& parts, Layer layer) {
  return static_cast<const T&>(*parts[static_cast<size_t>(layer)]);
}

// Who only moves elements moves them by their width, so that fewer kernels are made.
DataType moved_as(DataType type) {
  switch (size_of(type)) {
    case 1: return DataType::Uint8;
    case 2: return DataType::Float16;
    case 4: return DataType::Uint32;
    default: return DataType::Uint64;
  }
}

Status check_folds(const RankPlan& part) {
  if (fits_kernels(part)) return {};
  return Status::usage("a plan folds more than " + std::to_string(device::kMostOperands) +
                       " values at once, the most that this executor takes");
}

size_t aligned(size_t bytes) {
  return (bytes + device::kVectorBytes - 1) / device::kVectorBytes * device::kVectorBytes;
}

}  // namespace

CudaBuilder::CudaBuilder(int rank, CudaDevice& device, CudaKernels& kernels, ScheduleSource& schedules)
    : rank_(rank), device_(device), kernels_(kernels), schedules_(schedules) {}

Result<std::shared_ptr<Part>> CudaBuilder::build(Layer layer, const ResourceRequest& request, const Parts& above,
                                                 Delta& delta) {
  switch (layer) {
    case Layer::Global: return std::shared_ptr<Part>(std::make_shared<CudaGlobal>());
    case Layer::Schedule: return schedule_part(request, delta);
    case Layer::Buffer: return links_part(part_at<CudaSchedule>(above, Layer::Schedule), delta);
    case Layer::Range: return range_part(request, part_at<CudaSchedule>(above, Layer::Schedule));
  }
  return Status::internal("no such layer");
}

Result<std::shared_ptr<Part>> CudaBuilder::migrate(Layer layer, const ResourceRequest& request, const Parts& above,
                                                   const std::shared_ptr<Part>& old, bool, Delta& delta) {
  return layer == Layer::Global ? old : build(layer, request, above, delta);
}

Result<std::shared_ptr<Part>> CudaBuilder::schedule_part(const ResourceRequest& request, Delta& delta) {
  Result<SchedulePlan> source = schedules_.plan_of(request.schedule);
  if (!source.ok()) return source.status();
  Result<const RankPlan*> own = Program::part_of(*source->plan, rank_);
  if (!own.ok()) return own.status();
  THESEUS_TRY(check_folds(**own));
  auto part = std::make_shared<CudaSchedule>();
  part->name = source->plan->name;
  part->plan = source->plan;
  part->part = *own;
  part->blocks = static_cast<uint32_t>((*own)->thread_blocks.size());
  const FlatProgram flat = flatten(*source->plan, **own);
  constexpr size_t kHead = (sizeof(device::Program) + 15) / 16 * 16;
  Result<DeviceMemory> memory = device_.allocate(kHead + flat.bytes());
  if (!memory.ok()) return memory.status();
  part->program = std::move(*memory);
  std::vector<uint8_t> image(kHead + flat.bytes());
  const device::Program head =
      flat.place(image.data() + kHead, static_cast<const uint8_t*>(part->program.get()) + kHead);
  std::memcpy(image.data(), &head, sizeof head);
  THESEUS_TRY(device_.copy_now(part->program.get(), image.data(), image.size()));
  delta.made += part->blocks;
  return std::shared_ptr<Part>(std::move(part));
}

Result<std::shared_ptr<Part>> CudaBuilder::links_part(const CudaSchedule& schedule, Delta& delta) {
  std::vector<device::Link*> links;
  for (const Connection& connection : schedule.part->connections) {
    bool fresh = false;
    Result<device::Link*> link = device_.link(connection, fresh);
    if (!link.ok()) return link.status();
    links.push_back(*link);
    ++(fresh ? delta.opened : delta.kept);
  }
  Result<DeviceMemory> pointers = device_.upload(links.data(), links.size() * sizeof links[0]);
  if (!pointers.ok()) return pointers.status();
  auto part = std::make_shared<CudaLinks>();
  part->pointers = std::move(*pointers);
  return std::shared_ptr<Part>(std::move(part));
}

// A kernel whose TBs cannot all run at once would wait for itself for ever. The other ranks on this GPU have as many.
Status CudaBuilder::check_resident(const CudaSchedule& schedule, const CudaKernel& kernel) const {
  const uint64_t needed = uint64_t{schedule.blocks} * static_cast<uint64_t>(device_.sharers());
  if (schedule.blocks <= kMostCudaBlocks && needed <= kernel.resident) return {};
  const std::string sharing =
      device_.sharers() == 1 ? "" : " on each of the " + std::to_string(device_.sharers()) + " ranks of this GPU";
  return Status::usage(
      "plan '" + schedule.name + "' has " + std::to_string(schedule.blocks) + " thread blocks" + sharing + ", but " +
      device_.info().name + " can run " + std::to_string(std::min(kernel.resident, kMostCudaBlocks)) +
      " of them at once: give every rank a GPU of its own, or choose a schedule with fewer (THESEUS_ALGO; "
      "THESEUS_SCHEDULING=hpds)");
}

Result<std::shared_ptr<Part>> CudaBuilder::range_part(const ResourceRequest& request, const CudaSchedule& schedule) {
  const Plan& plan = *schedule.plan;
  const ShapeKey key = HostBuilder::shape_key_of(request.range);
  const bool reduces = is_reducing(plan.collective);
  const DataType type = reduces ? key.type : moved_as(key.type);
  const RedOp op = reduces ? key.op : RedOp::Sum;
  const size_t element = size_of(type);
  const auto pieces = static_cast<size_t>(plan.chunks_per_block);
  const size_t longest = key.count / pieces + (key.count % pieces > 0 ? 1 : 0);
  const CudaGeometry& geometry = device_.geometry();
  const bool short_messages = longest * element <= device::longest_ll_message(geometry.lines);

  auto part = std::make_shared<CudaRange>();
  device::Request& out = part->request;
  out.count = key.count;
  out.chunk = key.count / pieces;
  out.longer = static_cast<device::U32>(key.count % pieces);
  out.piece = static_cast<device::U32>(geometry.slot_bytes / element);
  out.micro_batches = longest == 0 ? 1 : static_cast<device::U32>((longest + out.piece - 1) / out.piece);
  out.scratch_rounds = plan.loop == LoopOrder::SubPipelines ? out.micro_batches : 1;
  out.scratch_stride = aligned((out.scratch_rounds > 1 ? longest : std::min<size_t>(out.piece, longest)) * element);
  out.type = static_cast<device::Type>(type);
  out.reduction = static_cast<device::Reduction>(op);
  out.protocol = short_messages ? device::Protocol::LL : device::Protocol::Simple;
  const auto chunks = static_cast<size_t>(schedule.part->scratch_chunks);
  part->scratch_bytes = chunks * out.scratch_stride;
  part->length_bytes = aligned(chunks * out.scratch_rounds * sizeof(device::U32));

  Result<const CudaKernel*> kernel = kernels_.interpreter(type, op, out.protocol);
  if (!kernel.ok()) return kernel.status();
  part->interpreter = *kernel;
  THESEUS_TRY(check_resident(schedule, **kernel));
  if (device_.generates() && instructions_of(*schedule.part) <= kMostGeneratedInstructions) {
    part->generated = generate(schedule, {type, op, out.protocol, /*scales=*/false});
  }
  return std::shared_ptr<Part>(std::move(part));
}

std::shared_ptr<const CudaKernels::Generated> CudaBuilder::generate(const CudaSchedule& schedule,
                                                                    const PlanKernel& kernel) {
  const std::string name = schedule.name + ", " + name_of(schedule.plan->collective) + ", rank " +
                           std::to_string(rank_) + ", " + std::to_string(digest(*schedule.plan)) + ", " +
                           name_of(kernel.type) + ", " + name_of(kernel.op) + ", " +
                           std::to_string(static_cast<int>(kernel.protocol));
  return kernels_.generate(
      name, [plan = schedule.plan, part = schedule.part, kernel] { return plan_text(*plan, *part, kernel); });
}

size_t CudaBuilder::arena_need(const Parts& parts) const {
  const auto& range = part_at<CudaRange>(parts, Layer::Range);
  return range.scratch_bytes + range.length_bytes;
}

size_t CudaBuilder::arena_size(const Part& global) const {
  return static_cast<const CudaGlobal&>(global).arena.bytes();
}

Result<std::shared_ptr<Part>> CudaBuilder::resize_arena(const std::shared_ptr<Part>& global, bool in_use,
                                                        size_t bytes) {
  Result<DeviceMemory> arena = device_.allocate(bytes);
  if (!arena.ok()) return arena.status();
  const std::shared_ptr<Part> part = in_use ? std::make_shared<CudaGlobal>() : global;
  static_cast<CudaGlobal&>(*part).arena = std::move(*arena);
  return part;
}

Status CudaBuilder::try_out(const Plan& plan) {
  Result<const RankPlan*> own = Program::part_of(plan, rank_);
  if (!own.ok()) return own.status();
  THESEUS_TRY(check_folds(**own));
  for (const Connection& connection : (*own)->connections) {
    bool fresh = false;
    Result<device::Link*> link = device_.link(connection, fresh);
    if (!link.ok()) return link.status();
  }
  return {};
}

CudaResources cuda_resources(const ResourceTree::Lease& lease) {
  return {&lease.part<CudaGlobal>(Layer::Global), &lease.part<CudaSchedule>(Layer::Schedule),
          &lease.part<CudaLinks>(Layer::Buffer), &lease.part<CudaRange>(Layer::Range)};
}

}  // namespace theseus
