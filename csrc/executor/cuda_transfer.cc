#include "executor/cuda_transfer.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace theseus {
namespace {

static_assert(sizeof(device::TransferRequest) <= cuda::kMaxParameterBytes);

// Below this a second TB gains nothing.
constexpr size_t kBytesPerWay = 1 << 20;
// Of one peer and direction: as many as it takes to fill a link between GPUs. Each has a block of memory of its own, so
// that with many ranks there are fewer.
constexpr int kMostWays = 8;
constexpr int kMostWaysOfARank = 64;

device::TransferHead head_of(const RequestSignature& signature) {
  device::TransferHead head{};
  head.count = signature.count;
  head.request = signature.request;
  head.type = static_cast<device::Type>(signature.type);
  head.collective = static_cast<device::U8>(signature.collective);
  head.rank = static_cast<device::U16>(signature.rank);
  return head;
}

// Of a transfer that goes in slots.
size_t messages_in(size_t bytes, const CudaGeometry& geometry) {
  return (sizeof(device::TransferHead) + bytes + geometry.slot_bytes - 1) / geometry.slot_bytes;
}

// What a peer's memory said, which may be anything.
RequestSignature signature_of(const device::TransferHead& head) {
  RequestSignature signature;
  signature.count = head.count;
  signature.request = head.request;
  signature.type = static_cast<DataType>(std::min<int>(static_cast<int>(head.type), kDataTypes - 1));
  signature.collective = static_cast<Collective>(std::min<int>(head.collective, kCollectives - 1));
  signature.rank = static_cast<int16_t>(head.rank);
  return signature;
}

}  // namespace

struct CudaTransfers::Pool {
  explicit Pool(cuda::Driver& driver) : driver(driver) {}
  ~Pool() {
    for (const auto& [memory, bytes] : spare) (void)driver.release_pinned(memory);
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  cuda::Driver& driver;
  std::vector<std::pair<void*, size_t>> spare;
};

struct CudaTransfers::Pinned {
  static Result<std::shared_ptr<Pinned>> take(const std::shared_ptr<Pool>& pool, size_t bytes) {
    const auto found = std::find_if(pool->spare.begin(), pool->spare.end(),
                                    [bytes](const auto& spare) { return spare.second >= bytes; });
    if (found != pool->spare.end()) {
      auto pinned = std::make_shared<Pinned>(pool, found->first, found->second);
      pool->spare.erase(found);
      return pinned;
    }
    constexpr size_t kPage = 4096;
    const size_t whole = (bytes + kPage - 1) / kPage * kPage;
    Result<void*> memory = pool->driver.allocate_pinned(whole);
    if (!memory.ok()) return memory.status();
    return std::make_shared<Pinned>(pool, *memory, whole);
  }
  Pinned(std::shared_ptr<Pool> pool, void* memory, size_t bytes)
      : pool(std::move(pool)), memory(memory), bytes(bytes) {}
  ~Pinned() { pool->spare.emplace_back(memory, bytes); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  std::shared_ptr<Pool> pool;
  void* memory;
  size_t bytes;
};

CudaTransfers::CudaTransfers(CudaDevice& device, CudaKernels& kernels, CudaExecution& execution, int ranks, int rails)
    : device_(device),
      kernels_(kernels),
      execution_(execution),
      ranks_(ranks),
      rails_(rails),
      pool_(std::make_shared<Pool>(device.driver())) {}

CudaTransfers::~CudaTransfers() {
  for (const auto& [stream, event] : events_) (void)device_.driver().destroy_event(device_.ordinal(), event);
  if (found_ != nullptr) (void)device_.driver().release_pinned(found_);
}

// Between hosts every message goes to the next rail, as on the host.
uint32_t CudaTransfers::ways_of(const CudaTransfer& transfer) const {
  const bool far = device_.is_far(transfer.peer);
  const int most = far ? rails_ : std::clamp(kMostWaysOfARank / std::max(ranks_ - 1, 1), 1, kMostWays);
  const size_t useful = far ? messages_in(transfer.bytes, device_.geometry()) : transfer.bytes / kBytesPerWay;
  return static_cast<uint32_t>(std::clamp<size_t>(useful, 1, static_cast<size_t>(std::max(most, 1))));
}

Connection CudaTransfers::connection_of(const CudaTransfer& transfer, uint32_t way) const {
  const bool far = device_.is_far(transfer.peer);
  const auto rail = static_cast<int16_t>(far ? way : 0);
  const auto channel = static_cast<int16_t>(kTransferChannel + (far ? 0 : static_cast<int>(way)));
  return {transfer.peer, transfer.sends, rail, channel};
}

uint64_t CudaTransfers::messages_of(const std::vector<const CudaTransfer*>& queue, uint32_t way) const {
  uint64_t messages = 0;
  for (const CudaTransfer* transfer : queue) {
    const uint64_t all = messages_in(transfer->bytes, device_.geometry()), ways = ways_of(*transfer);
    if (way < ways && way < all) messages += (all - way + ways - 1) / ways;
  }
  return messages;
}

Status CudaTransfers::make_ready(const std::vector<CudaTransfer>& transfers) {
  if (transfers.empty()) return {};
  if (kernel_ == nullptr) {
    Result<const CudaKernel*> kernel = kernels_.transfer();
    if (!kernel.ok()) return kernel.status();
    kernel_ = *kernel;
  }
  if (found_ == nullptr) {
    Result<void*> found = device_.driver().allocate_pinned(kMostCudaBlocks * sizeof(device::TransferMismatch));
    if (!found.ok()) return found.status();
    std::memset(*found, 0, kMostCudaBlocks * sizeof(device::TransferMismatch));
    found_ = static_cast<device::TransferMismatch*>(*found);
  }
  size_t lanes = 0;
  for (const CudaTransfer& transfer : transfers) {
    const uint32_t ways = ways_of(transfer);
    lanes += ways;
    for (uint32_t way = 0; way < ways; ++way) {
      bool fresh = false;
      THESEUS_TRY(device_.link(connection_of(transfer, way), fresh).status());
    }
  }
  return reserve_cursors(lanes);
}

Status CudaTransfers::reserve_cursors(size_t lanes) {
  const size_t bytes = lanes * sizeof(device::TransferCursor);
  if (!cursors_.empty() && cursors_.back().bytes() >= bytes) return {};
  const size_t doubled = cursors_.empty() ? size_t{4096} : 2 * cursors_.back().bytes();
  Result<DeviceMemory> memory = DeviceMemory::allocate(device_.driver(), device_.ordinal(), std::max(bytes, doubled));
  if (!memory.ok()) return memory.status();
  cursors_.push_back(std::move(*memory));
  return {};
}

// Lanes by peer and direction; the transfers of a lane stand together, in the order of the calls.
Status CudaTransfers::fill(const std::vector<CudaTransfer>& transfers, Filled& filled) {
  std::map<std::pair<int, bool>, std::vector<const CudaTransfer*>> queues;
  for (const CudaTransfer& transfer : transfers) queues[{transfer.peer, transfer.sends}].push_back(&transfer);
  std::vector<device::TransferLane> lanes;
  std::vector<device::Transfer> flat;
  for (const auto& [key, queue] : queues) {
    const auto first = static_cast<uint32_t>(flat.size());
    uint32_t most = 1;
    for (const CudaTransfer* transfer : queue) {
      const uint32_t ways = ways_of(*transfer);
      most = std::max(most, ways);
      flat.push_back(
          {static_cast<device::U8*>(transfer->data), transfer->bytes, head_of(transfer->signature), ways, 0});
    }
    for (uint32_t way = 0; way < most; ++way) {
      bool fresh = false;
      const Connection connection = connection_of(*queue.front(), way);
      Result<device::Link*> link = device_.link(connection, fresh);
      if (!link.ok()) return link.status();
      ProxyEnd* const end = device_.proxy_end(connection);
      if (end != nullptr) filled.proxied.push_back({end, messages_of(queue, way)});
      lanes.push_back({*link, first, static_cast<uint32_t>(flat.size()), way, key.second ? 1u : 0u});
    }
  }
  device::TransferRequest& request = filled.request;
  request.lane_count = static_cast<uint32_t>(lanes.size());
  if (lanes.size() <= device::kFewLanes && flat.size() <= device::kFewTransfers) {
    std::copy(lanes.begin(), lanes.end(), request.few_lanes);
    std::copy(flat.begin(), flat.end(), request.few_transfers);
    return {};
  }
  const size_t lane_bytes = lanes.size() * sizeof lanes[0], flat_bytes = flat.size() * sizeof flat[0];
  Result<std::shared_ptr<Pinned>> pinned = Pinned::take(pool_, lane_bytes + flat_bytes);
  if (!pinned.ok()) return pinned.status();
  filled.lists = std::move(*pinned);
  auto* const memory = static_cast<uint8_t*>(filled.lists->memory);
  std::memcpy(memory, lanes.data(), lane_bytes);
  std::memcpy(memory + lane_bytes, flat.data(), flat_bytes);
  request.lanes = reinterpret_cast<const device::TransferLane*>(memory);
  request.transfers = reinterpret_cast<const device::Transfer*>(memory + lane_bytes);
  return {};
}

// `then` goes on once `first` has come to where it is now.
Status CudaTransfers::order(cuda::Stream first, cuda::Stream then) {
  cuda::Event& event = events_[first];
  if (event == nullptr) {
    Result<cuda::Event> made = device_.driver().create_event(device_.ordinal());
    if (!made.ok()) return made.status();
    event = *made;
  }
  // A wait keeps to the record that it was queued behind, so the event may be recorded again at once.
  THESEUS_TRY(device_.driver().record(device_.ordinal(), event, first));
  return device_.driver().wait(device_.ordinal(), then, event);
}

Status CudaTransfers::run(Filled& filled, cuda::Stream stream) {
  device::TransferRequest& request = filled.request;
  request.cursors = static_cast<device::TransferCursor*>(cursors_.back().get());
  request.abort = device_.abort_word();
  request.fault = device_.fault_word();
  request.found = found_;
  const auto sharers = static_cast<uint32_t>(std::max(device_.sharers(), 1));
  const uint32_t room = std::clamp(kernel_->resident / sharers, 1u, kMostCudaBlocks);
  cuda::Launch launch;
  launch.function = kernel_->function;
  launch.grid = std::min(request.lane_count, room);
  launch.block = kernel_->threads;
  launch.shared_bytes = kernel_->shared_bytes;
  launch.stream = stream;
  launch.parameters = &request;
  launch.parameter_bytes = sizeof request;
  launch.cooperative = device_.info().cooperative;
  THESEUS_TRY(execution_.admit(launch.grid, kernel_->resident, stream));
  THESEUS_TRY(device_.announce(filled.proxied, 1, stream));
  return device_.driver().launch(device_.ordinal(), launch);
}

Status CudaTransfers::launch(const std::vector<CudaTransfer>& transfers, const std::vector<CudaCopy>& copies,
                             const std::vector<cuda::Stream>& streams) {
  const cuda::Stream home = streams.front();
  THESEUS_TRY(execution_.collect());
  THESEUS_TRY(execution_.begin(home));
  for (size_t i = 1; i < streams.size(); ++i) THESEUS_TRY(order(streams[i], home));
  Status status;
  for (const CudaCopy& copy : copies) {
    if (status.ok() && copy.bytes > 0 && copy.to != copy.from) {
      status = device_.driver().copy(device_.ordinal(), copy.to, copy.from, copy.bytes, home);
    }
  }
  Filled filled;
  if (status.ok() && !transfers.empty()) {
    status = fill(transfers, filled);
    if (status.ok()) status = run(filled, home);
  }
  for (size_t i = 1; i < streams.size() && status.ok(); ++i) status = order(home, streams[i]);
  // Whatever was queued uses the lists.
  const Status ended = execution_.end(home, std::move(filled.lists));
  return status.ok() ? ended : status;
}

Status CudaTransfers::fault(uint64_t word) const {
  if (device::fault_of(word) != device::Fault::OtherTransfer) return {};
  const uint32_t block = device::fault_block(word);
  if (found_ == nullptr || block >= kMostCudaBlocks) return Status::internal("a kernel reported a fault of nowhere");
  return mismatch(signature_of(found_[block].own), signature_of(found_[block].other));
}

}  // namespace theseus
