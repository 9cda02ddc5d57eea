#include "runtime/device_rank.h"

#include <algorithm>

#include "base/env.h"
#include "runtime/impl.h"

namespace theseus {

Result<cuda::Driver*> device_driver() {
  const std::string kind = settings::device();
  if (kind != "cuda" && kind != "cuda-emu") return static_cast<cuda::Driver*>(nullptr);
  return cuda::driver();
}

Result<int> device_of_thread() {
  Result<cuda::Driver*> driver = device_driver();
  if (!driver.ok()) return driver.status();
  if (*driver == nullptr) return -1;
  return (*driver)->current_device();
}

namespace {

int sharers_of(const std::vector<Peer>& peers, const Topology& topology, int rank) {
  if (peers.empty()) return 1;
  const auto own = static_cast<size_t>(rank);
  int sharers = 0;
  for (size_t other = 0; other < peers.size(); ++other) {
    const bool here = topology.host_of_rank[other] == topology.host_of_rank[own];
    if (here && peers[other].device_uuid == peers[own].device_uuid) ++sharers;
  }
  return sharers;
}

Status check_kinds(const std::vector<Peer>& peers, int rank) {
  const std::string& own = peers[static_cast<size_t>(rank)].device;
  for (size_t other = 0; other < peers.size(); ++other) {
    if (peers[other].device == own) continue;
    return Status::usage("rank " + std::to_string(other) + " works on " + peers[other].device + ", rank " +
                         std::to_string(rank) + " on " + own + ": THESEUS_DEVICE must be the same on all ranks");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<DeviceRank>> DeviceRank::open(const CommId& communicator, int rank,
                                                     const std::vector<Peer>& peers, const Topology& topology,
                                                     int ordinal, size_t slot_bytes) {
  if (!peers.empty()) THESEUS_TRY(check_kinds(peers, rank));
  Result<cuda::Driver*> driver = device_driver();
  if (!driver.ok()) return driver.status();
  if (*driver == nullptr) return std::unique_ptr<DeviceRank>();
  CudaGeometry geometry;
  if (slot_bytes != 0) geometry.slot_bytes = static_cast<uint32_t>(slot_bytes);
  std::unique_ptr<P2pLinks> links;
  if (!peers.empty()) {
    std::vector<P2pPeer> others;
    for (size_t other = 0; other < peers.size(); ++other) {
      const bool here = topology.host_of_rank[other] == topology.host_of_rank[static_cast<size_t>(rank)];
      others.push_back({peers[other].process, peers[other].host_name, peers[other].unix_name, here});
    }
    Result<std::unique_ptr<P2pLinks>> opened =
        P2pLinks::open(communicator, rank, **driver, ordinal, std::move(others), geometry.block_bytes());
    if (!opened.ok()) return opened.status();
    links = std::move(*opened);
  }
  Result<std::unique_ptr<CudaDevice>> device =
      CudaDevice::open(**driver, ordinal, geometry, std::move(links), sharers_of(peers, topology, rank));
  if (!device.ok()) return device.status();
  auto made = std::make_unique<DeviceRank>();
  made->device_ = std::move(*device);
  made->kernels_ = &CudaKernels::of(**driver, made->device_->info());
  made->execution_ = std::make_unique<CudaExecution>(*made->device_, *made->kernels_);
  Result<DeviceMemory> byte = made->device_->zeroed(1);
  if (!byte.ok()) return byte.status();
  made->barrier_ = std::move(*byte);
  return made;
}

DeviceRank::~DeviceRank() = default;

// A kernel that follows a pointer into ordinary memory takes the whole process down with it.
Status DeviceRank::check_buffers(const CollectiveCall& call, const BufferShape& shape) const {
  const auto check = [&](const char* name, const void* pointer) -> Status {
    Result<cuda::PointerInfo> info = device_->driver().pointer_info(pointer);
    if (!info.ok()) return info.status();
    if (info->kind != cuda::PointerKind::Unregistered) return {};
    return Status::argument(std::string(name) +
                            " is no memory of a GPU, nor pinned: THESEUS_DEVICE=host is for host "
                            "memory");
  };
  if (shape.input_blocks > 0) THESEUS_TRY(check("sendbuff", call.send));
  if (shape.output_blocks > 0) THESEUS_TRY(check("recvbuff", call.recv));
  return {};
}

Status DeviceRank::make_ready(const Request& request) {
  if (!request.op.divide || request.output_bytes == 0) return {};
  return kernels_->division(request.binding.type).status();
}

Status DeviceRank::launch(Request& request, ResourceTree::Lease lease, void* stream, int ranks) {
  auto* const queue = static_cast<cuda::Stream>(stream);
  THESEUS_TRY(execution_->collect());
  THESEUS_TRY(execution_->begin(queue));
  CudaCall call;
  call.resources = cuda_resources(lease);
  call.binding = request.binding;
  call.scalar_at = request.op.scalar_at;
  if (request.op.scaled && call.scalar_at == nullptr) call.binding.scalar = request.op.scalar;
  if (request.op.divide) call.divide_by = ranks;
  const bool padded = request.padded_count != 0;
  if (padded) THESEUS_TRY(enter(request, call.binding, queue));
  call.output_elements = request.output_bytes / size_of(request.binding.type) / (padded ? request.binding.count : 1) *
                         (padded ? request.padded_count : 1);
  const CudaSchedule& schedule = *call.resources.schedule;
  Status status = execution_->launch(call, queue);
  if (status.ok() && padded) status = leave(request, call.binding, queue);
  // Whatever was queued uses the lease.
  const Status ended = execution_->end(queue, std::move(lease), schedule);
  return status.ok() ? ended : status;
}

Status DeviceRank::enter(const Request& request, Binding& staged, cuda::Stream stream) {
  const Staging& staging = *request.plan->staging;
  const size_t bytes = staging.bytes(request.binding, request.padded_count);
  if (staging_.empty() || staging_.back().bytes() < bytes) {
    Result<DeviceMemory> memory = device_->allocate(bytes);
    if (!memory.ok()) return memory.status();
    staging_.push_back(std::move(*memory));
  }
  auto* const memory = static_cast<uint8_t*>(staging_.back().get());
  THESEUS_TRY(device_->driver().fill(device_->ordinal(), memory, 0, bytes, stream));
  staged = staging.place(staged, request.padded_count, memory);
  return copy_blocks(request, staged, /*in=*/true, stream);
}

Status DeviceRank::leave(const Request& request, const Binding& staged, cuda::Stream stream) {
  return copy_blocks(request, staged, /*in=*/false, stream);
}

Status DeviceRank::copy_blocks(const Request& request, const Binding& staged, bool in, cuda::Stream stream) {
  const Binding& user = request.binding;
  const size_t element = size_of(user.type);
  const size_t block = user.count * element;
  const size_t padded = request.padded_count * element;
  const auto blocks = static_cast<size_t>(in ? request.plan->staging->blocks().input_blocks
                                             : request.plan->staging->blocks().output_blocks);
  for (size_t b = 0; b < blocks; ++b) {
    void* const to = in ? static_cast<uint8_t*>(const_cast<void*>(staged.input)) + b * padded
                        : static_cast<uint8_t*>(user.output) + b * block;
    const void* const from = in ? static_cast<const uint8_t*>(user.input) + b * block
                                : static_cast<const uint8_t*>(staged.output) + b * padded;
    THESEUS_TRY(device_->driver().copy(device_->ordinal(), to, from, block, stream));
  }
  return {};
}

}  // namespace theseus
