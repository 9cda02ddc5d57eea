#include "runtime/communicator.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <unordered_set>

#include "base/env.h"
#include "base/fork.h"
#include "drivers/cuda/retired.h"
#include "net/rendezvous.h"
#include "runtime/group.h"
#include "runtime/impl.h"
#include "transport/shared_memory.h"

namespace theseus {
namespace {

struct LiveHandles {
  std::mutex mutex;
  std::unordered_set<const void*> handles;
};

// Never destroyed: handles may be used by other static destructors.
LiveHandles& live() {
  static LiveHandles& instance = *new LiveHandles;
  return instance;
}

Status in_progress_status() { return {Code::InProgress, "operation in progress"}; }

}  // namespace

Communicator::Communicator(int ranks, int rank, CommConfig config)
    : rank_(rank), ranks_(ranks), config_(std::move(config)), impl_(std::make_unique<Impl>(this)) {}

Communicator::~Communicator() { magic_ = 0; }

Communicator* CommunicatorAccess::make(int ranks, int rank, const CommConfig& config) {
  auto* communicator = new Communicator(ranks, rank, config);
  const std::lock_guard lock(live().mutex);
  live().handles.insert(communicator);
  return communicator;
}

void CommunicatorAccess::set_shape(Communicator& communicator, int ranks, int rank) {
  communicator.ranks_ = ranks;
  communicator.rank_ = rank;
}

bool CommunicatorAccess::forget(Communicator* communicator) {
  const std::lock_guard lock(live().mutex);
  return live().handles.erase(communicator) > 0;
}

void CommunicatorAccess::remove(Communicator* communicator) {
  forget(communicator);
  delete communicator;
}

bool Communicator::is_live(const void* handle) {
  const std::lock_guard lock(live().mutex);
  return live().handles.contains(handle);
}

Result<UniqueId> Communicator::create_unique_id() {
  THESEUS_TRY(check_not_forked());
  return theseus::create_unique_id();
}

namespace {

// Runs `join` for a new handle: at once, at the end of the group, or on the communicator's own thread.
Result<Communicator*> begin(Communicator* communicator, std::function<Status()> join) {
  Communicator::Impl& impl = CommunicatorAccess::impl(*communicator);
  const auto noted = [&impl, join = std::move(join)] {
    Status status = join();
    if (!status.ok()) impl.set_failure(status);
    return status;
  };
  if (!communicator->blocking()) {
    impl.progress.submit(noted);
    return communicator;
  }
  if (group_depth() > 0) {
    GroupItem item{};
    item.communicator = communicator;
    item.kind = GroupItem::Kind::Join;
    item.join = noted;
    group_add(std::move(item));
    return communicator;
  }
  Status status = noted();
  if (status.ok()) return communicator;
  CommunicatorAccess::remove(communicator);
  return status;
}

}  // namespace

// With the GPU that the calling thread is on, where none is named: others may do the joining.
static Result<CommConfig> on_device(CommConfig config) {
  if (config.device >= 0) return config;
  Result<int> device = device_of_thread();
  if (!device.ok()) return device.status();
  config.device = *device;
  return config;
}

Result<Communicator*> Communicator::init(const UniqueId& id, int ranks, int rank, const CommConfig& config) {
  if (ranks < 1)
    return Status::argument("a communicator of " + std::to_string(ranks) + " ranks: there must be at least 1");
  if (rank < 0 || rank >= ranks) {
    return Status::argument("rank " + std::to_string(rank) + " is out of range: there are " + std::to_string(ranks) +
                            " ranks, counted from 0");
  }
  THESEUS_TRY(check_not_forked());
  Result<CommConfig> placed = on_device(config);
  if (!placed.ok()) return placed.status();
  Communicator* communicator = CommunicatorAccess::make(ranks, rank, *placed);
  Impl& impl = CommunicatorAccess::impl(*communicator);
  return begin(communicator, [&impl, id] { return impl.join(id); });
}

Result<std::vector<Communicator*>> Communicator::init_all(int ranks, const std::vector<int>& devices) {
  if (ranks < 1)
    return Status::argument("a communicator of " + std::to_string(ranks) + " ranks: there must be at least 1");
  UniqueId id{};
  if (ranks > 1) {
    Result<UniqueId> created = create_unique_id();
    if (!created.ok()) return created.status();
    id = *created;
  }
  std::vector<Communicator*> communicators;
  for (int rank = 0; rank < ranks; ++rank) {
    CommConfig config;
    config.device = devices.empty() ? rank : devices[static_cast<size_t>(rank)];
    communicators.push_back(CommunicatorAccess::make(ranks, rank, config));
  }
  std::vector<Status> results(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { results[rank] = CommunicatorAccess::impl(*communicators[rank]).join(id); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : results) {
    if (status.ok()) continue;
    for (Communicator* communicator : communicators) CommunicatorAccess::remove(communicator);
    return status;
  }
  return communicators;
}

// A child is on the same GPU, whatever thread makes it.
CommConfig Communicator::child_config(const CommConfig* config) const {
  CommConfig own = config != nullptr ? *config : config_;
  own.device = config_.device;
  return own;
}

Result<Communicator*> Communicator::split(int color, int key, const CommConfig* config) {
  if (color < -1) {
    return Status::argument("split color " + std::to_string(color) +
                            " is negative: use NCCL_SPLIT_NOCOLOR (-1) to stay out");
  }
  THESEUS_TRY(impl_->usable());
  Communicator* child = CommunicatorAccess::make(1, 0, child_config(config));
  Impl& parent = *impl_;
  Impl& impl = CommunicatorAccess::impl(*child);
  const auto join = [&parent, &impl, color, key] { return impl.join_split(parent, color, key); };
  if (color >= 0) return begin(child, join);
  // Takes part in the exchange, and gets nothing.
  if (blocking() && group_depth() > 0) {
    GroupItem item{};
    item.communicator = child;
    item.kind = GroupItem::Kind::Join;
    item.join = [join, child] {
      Status status = join();
      CommunicatorAccess::remove(child);
      return status;
    };
    group_add(std::move(item));
    return nullptr;
  }
  Status status = join();
  CommunicatorAccess::remove(child);
  if (!status.ok()) return status;
  return nullptr;
}

Result<Communicator*> Communicator::shrink(const std::vector<int>& excluded, const CommConfig* config, bool abort) {
  std::unordered_set<int> out;
  for (const int rank : excluded) {
    if (rank < 0 || rank >= ranks_)
      return Status::argument("rank " + std::to_string(rank) + " to exclude does not exist");
    if (!out.insert(rank).second) return Status::argument("rank " + std::to_string(rank) + " is excluded twice");
  }
  if (out.contains(rank_))
    return Status::argument("an excluded rank must not call shrink (this is rank " + std::to_string(rank_) + ")");
  if (abort) {
    impl_->set_failure(Status::usage("this communicator was shrunk with abort"));
  } else {
    THESEUS_TRY(impl_->usable());
  }
  std::vector<int> survivors;
  int own = 0;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == rank_) own = static_cast<int>(survivors.size());
    if (!out.contains(rank)) survivors.push_back(rank);
  }
  const int generation = impl_->shrinks++;
  Communicator* child = CommunicatorAccess::make(static_cast<int>(survivors.size()), own, child_config(config));
  Impl& parent = *impl_;
  Impl& impl = CommunicatorAccess::impl(*child);
  return begin(child,
               [&parent, &impl, survivors, generation] { return impl.join_shrink(parent, survivors, generation); });
}

Status Communicator::finalize() {
  const Phase phase = impl_->phase.load();
  if (phase == Phase::Finalized) return Status::usage("this communicator was finalized before");
  return impl_->leave();
}

Status Communicator::destroy(Communicator* communicator) {
  if (communicator == nullptr) return {};
  if (!CommunicatorAccess::forget(communicator)) {
    return Status::argument("this communicator was destroyed before, or never was one");
  }
  Status status;
  if (!is_forked_child()) {
    Impl& impl = CommunicatorAccess::impl(*communicator);
    const bool failed_before = impl.failed.load();
    if (impl.phase.load() != Phase::Finalized) status = impl.leave();
    if (failed_before) status = {};  // was reported when it happened
    impl.progress.stop();
    delete communicator;
  }
  return status;
}

Status Communicator::abort(Communicator* communicator) {
  if (communicator == nullptr) return {};
  if (!CommunicatorAccess::forget(communicator)) {
    return Status::argument("this communicator was destroyed before, or never was one");
  }
  if (is_forked_child()) return {};
  Impl& impl = CommunicatorAccess::impl(*communicator);
  impl.aborted.store(true, std::memory_order_release);
  impl.set_failure(Status::usage("this communicator was aborted"));
  impl.progress.stop();
  {
    const std::lock_guard lock(impl.running);  // whoever waits for peers sees `failed` and leaves
  }
  if (impl.star != nullptr) impl.star->drop();
  delete communicator;
  return {};
}

Status Communicator::revoke() {
  if (impl_->phase.load() == Phase::Finalized) return Status::argument("this communicator was finalized");
  if (impl_->failed.load()) return Status::argument("this communicator has failed or was revoked before");
  const Status revoked = Status::usage("this communicator was revoked by rank " + std::to_string(rank_));
  (void)impl_->fail(revoked);
  return {};
}

bool Communicator::in_progress() const { return !impl_->progress.idle(); }

Status Communicator::async_error() const {
  if (impl_->failed.load(std::memory_order_acquire)) return impl_->failure_status();
  THESEUS_TRY(impl_->check_device());
  if (!blocking() && in_progress()) return in_progress_status();
  return {};
}

Status Communicator::submit(const CollectiveCall& call) {
  Impl& impl = *impl_;
  if (group_depth() == 0 && config_.blocking && impl.progress.idle()) [[likely]] {
    const std::lock_guard lock(impl.running);
    return impl.run(call);
  }
  Result<ResolvedOp> op = impl.check(call);
  if (!op.ok()) return group_depth() > 0 ? group_error(op.status()) : op.status();
  if (group_depth() > 0) {
    GroupItem item{};
    item.communicator = this;
    item.kind = GroupItem::Kind::Collective;
    item.collective = call;
    item.op = *op;
    group_add(std::move(item));
    return {};
  }
  std::shared_ptr<Work> work = submit_async(call);
  return blocking() ? work->wait(-1) : in_progress_status();
}

std::shared_ptr<Work> Communicator::submit_async(const CollectiveCall& call) {
  Impl& impl = *impl_;
  Result<ResolvedOp> op = impl.check(call);
  if (!op.ok()) return finished_work(op.status());
  return impl.progress.submit([&impl, call, op = *op] {
    const std::lock_guard lock(impl.running);
    return impl.run(call, op);
  });
}

Status Communicator::Impl::check_all_to_all_v(const AllToAllVCall& call) const {
  if (static_cast<int>(call.type) >= kDataTypes) return Status::argument("this datatype does not exist");
  if (call.send_counts == nullptr || call.recv_counts == nullptr || call.send_offsets == nullptr ||
      call.recv_offsets == nullptr) {
    return Status::argument("all-to-all with uneven splits needs counts and offsets");
  }
  for (int rank = 0; rank < self->ranks(); ++rank) {
    if (call.send_counts[rank] > 0 && call.send == nullptr)
      return Status::argument("sendbuff is NULL, but there is something to send");
    if (call.recv_counts[rank] > 0 && call.recv == nullptr)
      return Status::argument("recvbuff is NULL, but there is something to receive");
  }
  if (device == nullptr) return {};
  const auto any = [this](const size_t* counts) {
    return std::any_of(counts, counts + self->ranks(), [](size_t c) { return c > 0; });
  };
  if (any(call.send_counts)) THESEUS_TRY(device->check_buffer("sendbuff", call.send));
  return any(call.recv_counts) ? device->check_buffer("recvbuff", call.recv) : Status();
}

Status Communicator::all_to_all_v(const AllToAllVCall& call) {
  Impl& impl = *impl_;
  THESEUS_TRY(impl.check_all_to_all_v(call));
  if (group_depth() > 0) return group_error(Status::usage("all-to-all with uneven splits cannot be part of a group"));
  if (blocking() && impl.progress.idle()) {
    const std::lock_guard lock(impl.running);
    return impl.run_all_to_all_v(call);
  }
  std::shared_ptr<Work> work = all_to_all_v_async(call);
  return blocking() ? work->wait(-1) : in_progress_status();
}

std::shared_ptr<Work> Communicator::all_to_all_v_async(const AllToAllVCall& call) {
  Impl& impl = *impl_;
  if (Status status = impl.check_all_to_all_v(call); !status.ok()) return finished_work(status);
  std::vector<size_t> counts;
  for (const size_t* array : {call.send_counts, call.send_offsets, call.recv_counts, call.recv_offsets}) {
    counts.insert(counts.end(), array, array + ranks_);
  }
  return impl.progress.submit([&impl, call, counts = std::move(counts), n = static_cast<size_t>(ranks_)] {
    AllToAllVCall own = call;
    own.send_counts = counts.data();
    own.send_offsets = counts.data() + n;
    own.recv_counts = counts.data() + 2 * n;
    own.recv_offsets = counts.data() + 3 * n;
    const std::lock_guard lock(impl.running);
    return impl.run_all_to_all_v(own);
  });
}

Status Communicator::Impl::check_point_to_point(const PointToPoint& operation) const {
  if (static_cast<int>(operation.type) >= kDataTypes) return Status::argument("this datatype does not exist");
  if (operation.peer < 0 || operation.peer >= self->ranks()) {
    return Status::argument("peer " + std::to_string(operation.peer) + " is not a rank of this communicator of " +
                            std::to_string(self->ranks()));
  }
  if (operation.count == 0) return {};
  if (operation.data == nullptr) return Status::argument("the buffer is NULL, but count is not 0");
  return device == nullptr ? Status() : device->check_buffer(operation.sends ? "sendbuff" : "recvbuff", operation.data);
}

namespace {

Communicator::Impl::PointToPoint point_to_point(bool sends, const void* data, size_t count, DataType type, int peer,
                                                void* stream = nullptr) {
  const size_t element = static_cast<int>(type) < kDataTypes ? size_of(type) : 1;
  return {sends, const_cast<void*>(data), count * element, count, type, peer, stream};
}

}  // namespace

class PointToPointEntry {
 public:
  static Status run(Communicator& communicator, const Communicator::Impl::PointToPoint& operation) {
    Communicator::Impl& impl = CommunicatorAccess::impl(communicator);
    if (Status status = impl.check_point_to_point(operation); !status.ok()) {
      return group_depth() > 0 ? group_error(status) : status;
    }
    if (group_depth() > 0) {
      GroupItem item{};
      item.communicator = &communicator;
      item.kind = GroupItem::Kind::PointToPoint;
      item.point_to_point = operation;
      group_add(std::move(item));
      return {};
    }
    if (communicator.blocking() && impl.progress.idle()) {
      const std::lock_guard lock(impl.running);
      return impl.run_point_to_point(operation);
    }
    std::shared_ptr<Work> work = enqueue(communicator, operation);
    return communicator.blocking() ? work->wait(-1) : in_progress_status();
  }

  static std::shared_ptr<Work> enqueue(Communicator& communicator, const Communicator::Impl::PointToPoint& operation) {
    Communicator::Impl& impl = CommunicatorAccess::impl(communicator);
    if (Status status = impl.check_point_to_point(operation); !status.ok()) return finished_work(status);
    return impl.progress.submit([&impl, operation] {
      const std::lock_guard lock(impl.running);
      return impl.run_point_to_point(operation);
    });
  }
};

Status Communicator::send(const void* data, size_t count, DataType type, int peer, void* stream) {
  return PointToPointEntry::run(*this, point_to_point(true, data, count, type, peer, stream));
}

Status Communicator::recv(void* data, size_t count, DataType type, int peer, void* stream) {
  return PointToPointEntry::run(*this, point_to_point(false, data, count, type, peer, stream));
}

std::shared_ptr<Work> Communicator::send_async(const void* data, size_t count, DataType type, int peer) {
  return PointToPointEntry::enqueue(*this, point_to_point(true, data, count, type, peer));
}

std::shared_ptr<Work> Communicator::recv_async(void* data, size_t count, DataType type, int peer) {
  return PointToPointEntry::enqueue(*this, point_to_point(false, data, count, type, peer));
}

Status Communicator::barrier() {
  Impl& impl = *impl_;
  if (group_depth() > 0) return group_error(Status::usage("a barrier cannot be part of a group"));
  if (blocking() && impl.progress.idle()) {
    const std::lock_guard lock(impl.running);
    return impl.run_barrier();
  }
  std::shared_ptr<Work> work = barrier_async();
  return blocking() ? work->wait(-1) : in_progress_status();
}

std::shared_ptr<Work> Communicator::barrier_async() {
  Impl& impl = *impl_;
  return impl.progress.submit([&impl] {
    const std::lock_guard lock(impl.running);
    return impl.run_barrier();
  });
}

Result<int> Communicator::create_premulsum(DataType type, const void* scalar, bool pointed) {
  if (static_cast<int>(type) >= kDataTypes) return Status::argument("this datatype does not exist");
  if (scalar == nullptr) return Status::argument("the scalar of PreMulSum is NULL");
  const std::lock_guard lock(impl_->ops_mutex);
  Impl::PremulSum op{type, {}, nullptr};
  if (pointed && impl_->device != nullptr) {
    op.scalar_at = scalar;
  } else {
    std::memcpy(op.scalar, scalar, size_of(type));
  }
  impl_->ops.emplace(impl_->next_op, op);
  return impl_->next_op++;
}

Status Communicator::destroy_op(int op) {
  if (op >= 0 && op <= static_cast<int>(RedOp::Avg))
    return Status::argument("a built-in reduction cannot be destroyed");
  const std::lock_guard lock(impl_->ops_mutex);
  if (impl_->ops.erase(op) == 0)
    return Status::argument("reduction " + std::to_string(op) + " is no handle of this communicator");
  return {};
}

void Communicator::set_timeout(double seconds) { impl_->timeout.store(seconds, std::memory_order_relaxed); }

void Communicator::record_tte(size_t capacity) {
  const std::lock_guard lock(impl_->running);
  impl_->tte = capacity == 0 ? nullptr : std::make_unique<TteRecorder>(capacity);
}

std::vector<TteSample> Communicator::take_tte() {
  const std::lock_guard lock(impl_->running);
  return impl_->tte == nullptr ? std::vector<TteSample>{} : impl_->tte->samples();
}

std::optional<ContextState> Communicator::context_state() const {
  if (impl_->phase.load(std::memory_order_acquire) == Phase::Joining || impl_->adaptation == nullptr) return {};
  return impl_->adaptation->state();
}

Explanation Communicator::explain(Collective collective, size_t count, DataType type, int root) const {
  Explanation explanation;
  if (impl_->plans == nullptr) return explanation;
  const Choice choice = impl_->plans->choose_for(collective, count, type, root);
  explanation.chosen = choice.algorithm;
  explanation.reason = choice.reason;
  if (impl_->adaptation != nullptr) {
    const std::lock_guard lock(impl_->running);
    const CollectiveCall call{.collective = collective, .count = count, .type = type, .root = root};
    const PolicyRequest request = impl_->plans->policy_request(call, RedOp::Sum);
    for (const ScheduleVerdict& verdict : impl_->adaptation->explain(request, impl_->next_request)) {
      explanation.candidates.push_back({verdict.name, verdict.usable, verdict.score, verdict.reason});
    }
    if (impl_->adaptation->has_schedules(collective)) {
      const int32_t id = impl_->adaptation->select(request, impl_->next_request).schedule;
      const auto schedule = id < 0 ? nullptr : impl_->adaptation->schedule(static_cast<uint32_t>(id));
      if (schedule != nullptr) {
        explanation.chosen = schedule->name;
        explanation.reason = "a schedule of the job's context, by its policy";
      }
    }
  }
  for (const Candidate& candidate : choice.candidates) {
    explanation.candidates.push_back({candidate.algorithm, candidate.usable, candidate.score, candidate.reason});
  }
  return explanation;
}

const CommId& Communicator::id() const { return impl_->id; }

bool Communicator::on_gpu() const {
  if (impl_->phase.load(std::memory_order_acquire) == Phase::Joining || impl_->device == nullptr) return false;
  return !impl_->device->device().driver().emulated();
}

bool Communicator::forwards() const {
  return impl_->phase.load(std::memory_order_acquire) != Phase::Joining && impl_->forwards;
}

std::vector<std::string> Communicator::describe_peers() const {
  std::vector<std::string> lines;
  for (size_t rank = 0; rank < impl_->peers.size(); ++rank) {
    const Peer& peer = impl_->peers[rank];
    std::string line = "rank " + std::to_string(rank) + ": " + peer.host_name + ", process " + std::to_string(peer.pid);
    if (impl_->links != nullptr) line += std::string(", ") + impl_->links->transport_to(static_cast<int>(rank));
    for (const Address& rail : peer.rails) line += ", " + rail.ip_string();
    lines.push_back(line);
  }
  return lines;
}

Result<void*> mem_alloc(size_t bytes) {
  Result<cuda::Driver*> driver = device_driver();
  if (!driver.ok()) return driver.status();
  if (*driver == nullptr) return SharedMemory::allocate(bytes);
  Result<int> device = (*driver)->current_device();
  if (!device.ok()) return device.status();
  return cuda::Retired::of(**driver, *device).allocate(bytes);
}

Status mem_free(void* pointer) {
  Result<cuda::Driver*> driver = device_driver();
  if (!driver.ok()) return driver.status();
  if (*driver == nullptr) return SharedMemory::free(pointer);
  Result<cuda::PointerInfo> info = (*driver)->pointer_info(pointer);
  if (!info.ok()) return info.status();
  cuda::Retired& retired = cuda::Retired::of(**driver, std::max(info->ordinal, 0));
  if (info->kind != cuda::PointerKind::Device || info->base != pointer || retired.holds(pointer)) {
    return Status::argument("this is no memory that ncclMemAlloc gave, or it was freed before");
  }
  retired.add_memory(pointer);
  return {};
}

}  // namespace theseus
