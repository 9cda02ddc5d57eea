#include "executor/cuda_device.h"

#include <cstring>
#include <new>
#include <utility>

#include "base/env.h"

namespace theseus {
namespace {

constexpr size_t kLinksPerTable = 64;

}  // namespace

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(cuda::Driver& driver, int ordinal, const CudaGeometry& geometry,
                                                     std::unique_ptr<P2pLinks> links, int sharers) {
  Result<cuda::DeviceInfo> info = driver.device_info(ordinal);
  if (!info.ok()) return info.status();
  auto device = std::unique_ptr<CudaDevice>(new CudaDevice(driver, *info, geometry, sharers));
  device->links_ = std::move(links);
  THESEUS_TRY(device->prepare());
  return device;
}

Status CudaDevice::prepare() {
  const std::string kernels = settings::kernels();
  generates_ = kernels == "generated" || (kernels != "interpreted" && !driver_.emulated());
  Result<cuda::Stream> stream = driver_.create_stream(ordinal());
  if (!stream.ok()) return stream.status();
  stream_ = *stream;
  Result<void*> control = driver_.allocate_pinned(sizeof(Control));
  if (!control.ok()) return control.status();
  control_ = new (*control) Control{};
  Result<DeviceMemory> finished = zeroed(size_t{kMostCudaBlocks} * device::kFinishedStride * sizeof(device::U64));
  if (!finished.ok()) return finished.status();
  finished_ = std::move(*finished);
  device::Progress progress{};
  progress.finished = static_cast<device::U64*>(finished_.get());
  Result<DeviceMemory> uploaded = upload(&progress, sizeof progress);
  if (!uploaded.ok()) return uploaded.status();
  progress_ = std::move(*uploaded);
  return {};
}

CudaDevice::~CudaDevice() {
  if (control_ != nullptr) (void)driver_.release_pinned(control_);
  if (stream_ != nullptr) (void)driver_.destroy_stream(ordinal(), stream_);
}

Status CudaDevice::copy_now(void* to, const void* from, size_t bytes) {
  THESEUS_TRY(driver_.copy(ordinal(), to, from, bytes, stream_));
  return driver_.synchronize(ordinal(), stream_);
}

Result<DeviceMemory> CudaDevice::upload(const void* data, size_t bytes) {
  Result<DeviceMemory> memory = allocate(bytes);
  if (!memory.ok() || bytes == 0) return memory;
  THESEUS_TRY(copy_now(memory->get(), data, bytes));
  return memory;
}

Result<DeviceMemory> CudaDevice::zeroed(size_t bytes) {
  Result<DeviceMemory> memory = allocate(bytes);
  if (!memory.ok() || bytes == 0) return memory;
  THESEUS_TRY(driver_.fill(ordinal(), memory->get(), 0, bytes, stream_));
  THESEUS_TRY(driver_.synchronize(ordinal(), stream_));
  return memory;
}

// The receiver's block holds slots, lines and posted words; the sender's the count of what was taken.
Result<device::Link> CudaDevice::describe(const Connection& connection) {
  if (links_ == nullptr) return Status::internal("one rank has no peers");
  Result<void*> own = links_->own_block(connection.peer, connection.channel);
  if (!own.ok()) return own.status();
  Result<void*> theirs = links_->peer_block(connection.peer, connection.channel);
  if (!theirs.ok()) return theirs.status();
  auto* const receiver = static_cast<uint8_t*>(connection.outgoing ? *theirs : *own);
  auto* const sender = static_cast<uint8_t*>(connection.outgoing ? *own : *theirs);
  device::Link link{};
  link.slots = receiver + geometry_.slots_at();
  link.posted = reinterpret_cast<device::U64*>(receiver + geometry_.posted_at());
  link.lines = reinterpret_cast<device::U64*>(receiver + geometry_.lines_at());
  link.taken = reinterpret_cast<device::U64*>(sender);
  link.slot_bytes = geometry_.slot_bytes;
  link.slot_count = geometry_.slots;
  link.line_count = geometry_.lines;
  return link;
}

Result<device::Link*> CudaDevice::link(const Connection& connection, bool& fresh) {
  const Connector connector{connection.outgoing, connection.peer, connection.channel};
  const auto found = known_.find(connector);
  fresh = found == known_.end();
  if (!fresh) return found->second;
  Result<device::Link> description = describe(connection);
  if (!description.ok()) return description.status();
  if (links_used_ == tables_.size() * kLinksPerTable) {
    Result<DeviceMemory> table = zeroed(kLinksPerTable * sizeof(device::Link));
    if (!table.ok()) return table.status();
    tables_.push_back(std::move(*table));
  }
  auto* const link =
      static_cast<device::Link*>(tables_[links_used_ / kLinksPerTable].get()) + links_used_ % kLinksPerTable;
  THESEUS_TRY(copy_now(link, &*description, sizeof *description));
  ++links_used_;
  known_[connector] = link;
  return link;
}

}  // namespace theseus
