#include "executor/cuda_execution.h"

#include <cstring>
#include <utility>

namespace theseus {

CudaExecution::~CudaExecution() {
  cuda::Driver& driver = device_.driver();
  for (const UnderWay& request : under_way_) {
    let_go(request);
    (void)driver.destroy_event(device_.ordinal(), request.done);
  }
  for (const UnderWay& request : captured_) let_go(request);
  for (const cuda::Event event : free_) (void)driver.destroy_event(device_.ordinal(), event);
}

Result<cuda::Event> CudaExecution::take_event() {
  if (free_.empty()) return device_.driver().create_event(device_.ordinal());
  const cuda::Event event = free_.back();
  free_.pop_back();
  return event;
}

Status CudaExecution::admit(uint64_t blocks, uint64_t resident, cuda::Stream stream) {
  THESEUS_TRY(device_.residency().admit(blocks, resident, stream, capturing_));
  // From here on nothing that waits for the device may be called, before its peers have launched theirs.
  device_.retired().begin_work();
  ++launches_;
  return {};
}

void CudaExecution::let_go(const UnderWay& request) {
  if (request.done != nullptr) device_.residency().left(request.done);
  for (int i = 0; i < request.launches; ++i) device_.retired().end_work();
}

Status CudaExecution::begin(cuda::Stream stream) {
  Result<cuda::Capture> capture = device_.driver().capture(device_.ordinal(), stream);
  if (!capture.ok()) return capture.status();
  capturing_ = capture->state != cuda::Capture::State::None;
  // One handle stands for the default streams of all threads, where each has its own.
  if (under_way_.empty() || (last_stream_ == stream && stream != cuda::per_thread_stream())) return {};
  // A captured request runs when its graph does: the user orders that.
  if (capturing_) return {};
  return device_.driver().wait(device_.ordinal(), stream, under_way_.back().done);
}

Status CudaExecution::end(cuda::Stream stream, ResourceTree::Lease lease, const CudaSchedule& schedule) {
  {
    const std::lock_guard lock(newest_mutex_);
    newest_plan_ = schedule.name;
    newest_peers_.clear();
    for (const Connection& connection : schedule.part->connections) newest_peers_.push_back(connection.peer);
  }
  return end(stream, UnderWay{nullptr, std::move(lease), nullptr, 0});
}

Status CudaExecution::end(cuda::Stream stream, std::shared_ptr<void> held) {
  return end(stream, UnderWay{nullptr, {}, std::move(held), 0});
}

Status CudaExecution::end(cuda::Stream stream, UnderWay request) {
  request.launches = std::exchange(launches_, 0);
  if (capturing_) {
    captured_.push_back(std::move(request));
    return {};
  }
  Result<cuda::Event> done = take_event();
  Status recorded = done.ok() ? device_.driver().record(device_.ordinal(), *done, stream) : done.status();
  if (!recorded.ok()) {
    // Nothing tells when its kernels are done, so what they use stays to the end.
    captured_.push_back(std::move(request));
    return recorded;
  }
  request.done = *done;
  under_way_.push_back(std::move(request));
  device_.residency().launched(*done);
  last_stream_ = stream;
  return {};
}

Status CudaExecution::launch(const CudaCall& call, cuda::Stream stream) {
  const CudaRange& range = *call.resources.range;
  device::Request request = range.request;
  request.input = call.binding.input;
  request.output = call.binding.output;
  auto* const scratch = static_cast<device::U8*>(call.resources.global->arena.get());
  request.scratch = scratch;
  request.scratch_lengths = reinterpret_cast<device::U32*>(scratch + range.scratch_bytes);
  request.links = static_cast<device::Link* const*>(call.resources.links->pointers.get());
  request.progress = device_.progress();
  request.abort = device_.abort_word();
  request.fault = device_.fault_word();
  request.tag = call.binding.tag.hash & 0xffff;
  if (call.binding.scalar != nullptr) {
    request.scaling = device::Scaling::Immediate;
    std::memcpy(&request.scalar, call.binding.scalar, size_of(call.binding.type));
  } else if (call.scalar_at != nullptr) {
    request.scaling = device::Scaling::Pointed;
    request.scalar_at = call.scalar_at;
  }
  const CudaKernel* generated = range.generated != nullptr ? range.generated->get() : nullptr;
  if (generated != nullptr && (request.scaling != device::Scaling::None ||
                               !device_.residency().fits(call.resources.schedule->blocks, generated->resident))) {
    generated = nullptr;
  }
  const CudaKernel& kernel = generated != nullptr ? *generated : *range.interpreter;
  if (generated == nullptr)
    request.program = static_cast<const device::Program*>(call.resources.schedule->program.get());
  cuda::Launch launch;
  launch.function = kernel.function;
  launch.grid = call.resources.schedule->blocks;
  launch.block = kernel.threads;
  launch.shared_bytes = kernel.shared_bytes;
  launch.stream = stream;
  launch.parameters = &request;
  launch.parameter_bytes = sizeof request;
  launch.cooperative = device_.info().cooperative;
  if (launch.grid > 0) {
    THESEUS_TRY(admit(launch.grid, kernel.resident, stream));
    THESEUS_TRY(device_.announce(call.resources.links->proxied, request.micro_batches, stream));
    THESEUS_TRY(device_.driver().launch(device_.ordinal(), launch));
  }
  if (call.divide_by <= 1 || call.output_elements == 0) return {};

  Result<const CudaKernel*> divider = kernels_.division(call.binding.type);
  if (!divider.ok()) return divider.status();
  device::Division division{call.binding.output, call.output_elements, call.divide_by};
  launch.function = (*divider)->function;
  launch.block = (*divider)->threads;
  launch.shared_bytes = (*divider)->shared_bytes;
  launch.grid = static_cast<uint32_t>(
      std::min<size_t>(std::max<uint32_t>((*divider)->resident, 1), (call.output_elements + 1023) / 1024));
  launch.parameters = &division;
  launch.parameter_bytes = sizeof division;
  launch.cooperative = false;
  return device_.driver().launch(device_.ordinal(), launch);
}

Status CudaExecution::collect() {
  while (!under_way_.empty()) {
    Result<bool> done = device_.driver().query(device_.ordinal(), under_way_.front().done);
    if (!done.ok()) return done.status();
    if (!*done) return {};
    let_go(under_way_.front());
    free_.push_back(under_way_.front().done);
    under_way_.pop_front();
  }
  return {};
}

Result<bool> CudaExecution::idle() {
  THESEUS_TRY(collect());
  return under_way_.empty();
}

Status CudaExecution::settle() {
  Status status;
  if (!under_way_.empty()) status = device_.driver().synchronize(device_.ordinal(), under_way_.back().done);
  for (const UnderWay& request : under_way_) {
    let_go(request);
    free_.push_back(request.done);
  }
  for (const UnderWay& request : captured_) let_go(request);
  device_.residency().forget_captured();
  under_way_.clear();
  captured_.clear();
  return status;
}

Status CudaExecution::fault() const {
  const uint64_t word = device_.fault();
  if (word == 0) return {};
  const std::lock_guard lock(newest_mutex_);
  const uint32_t link = device::fault_link(word);
  const std::string peer =
      link < newest_peers_.size() ? "rank " + std::to_string(newest_peers_[link]) : std::string("a peer");
  const std::string where =
      " (plan '" + newest_plan_ + "', thread block " + std::to_string(device::fault_block(word)) + ")";
  switch (device::fault_of(word)) {
    case device::Fault::WrongKernel: return Status::internal("a kernel was given a request of another kind" + where);
    case device::Fault::OtherCall:
      return Status::usage("mismatched calls: " + peer +
                           " is in another collective, or in one of another count, type, "
                           "operation or root" +
                           where);
    default:
      return Status::usage("mismatched calls: " + peer + " sent a message of a length that does not fit" + where);
  }
}

}  // namespace theseus
