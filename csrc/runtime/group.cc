#include "runtime/group.h"

#include <algorithm>
#include <map>
#include <set>
#include <thread>
#include <tuple>

#include "runtime/device_batch.h"
#include "runtime/drive.h"
#include "runtime/point_to_point.h"
#include "runtime/request_run.h"

namespace theseus {
namespace {

struct Group {
  int depth = 0;
  std::vector<GroupItem> items;
  Status error;
};

thread_local Group group;

// The part of a group that belongs to one communicator: collectives in order, point-to-point beside them.
class CommunicatorJob {
 public:
  explicit CommunicatorJob(Communicator& communicator)
      : impl_(CommunicatorAccess::impl(communicator)), batch_(impl_), device_batch_(impl_) {}

  Communicator::Impl& impl() const { return impl_; }

  Status add(const GroupItem& item) {
    switch (item.kind) {
      case GroupItem::Kind::PointToPoint:
        return impl_.device == nullptr ? batch_.add(item.point_to_point) : device_batch_.add(item.point_to_point);
      case GroupItem::Kind::Collective: {
        Result<PreparedRequest> prepared = impl_.prepare(item.collective, item.op);
        if (!prepared.ok()) return prepared.status();
        if (prepared->request.plan != nullptr) requests_.push_back(std::move(*prepared));
        return {};
      }
      default: return Status::internal("this call cannot run inside a group");
    }
  }

  // The part that needs no peer. On a GPU nothing is queued yet, so that what goes wrong here leaves no kernel waiting.
  Status begin() { return impl_.device == nullptr ? batch_.copy_to_self() : device_batch_.make_ready(); }

  Advance advance() {
    if (impl_.device != nullptr) return launch();
    const Advance collectives = advance_collectives();
    if (collectives == Advance::Failed) return collectives;
    const Advance transfers = batch_.advance();
    if (transfers == Advance::Failed) {
      status_ = batch_.status();
      return transfers;
    }
    if (collectives == Advance::Done) return transfers;
    if (transfers == Advance::Done) return collectives;
    return collectives == Advance::Blocked && transfers == Advance::Blocked ? Advance::Blocked : Advance::Progressed;
  }

  const Status& status() const { return status_; }

  // The streams of its requests on a GPU; empty on the host.
  std::set<void*> streams() const {
    std::set<void*> streams;
    if (impl_.device == nullptr) return streams;
    for (const PreparedRequest& prepared : requests_) streams.insert(prepared.request.stream);
    streams.insert(device_batch_.streams().begin(), device_batch_.streams().end());
    return streams;
  }

 private:
  Advance advance_collectives() {
    bool progressed = false;
    while (!requests_.empty()) {
      Request& request = requests_.front().request;
      if (!run_.has_value()) run_.emplace(impl_, request);
      const Advance state = run_->advance();
      if (state == Advance::Failed) status_ = run_->status();
      if (state == Advance::Blocked && progressed) return Advance::Progressed;
      if (state != Advance::Done) return state;
      impl_.complete(request);
      run_.reset();
      requests_.pop_front();
      progressed = true;
    }
    return Advance::Done;
  }

  // One after the other, as the communicator's kernels run: collectives first, on all ranks.
  Advance launch() {
    for (PreparedRequest& prepared : requests_) {
      status_ = impl_.launch(prepared);
      if (!status_.ok()) return Advance::Failed;
    }
    requests_.clear();
    status_ = device_batch_.launch();
    return status_.ok() ? Advance::Done : Advance::Failed;
  }

  Communicator::Impl& impl_;
  std::deque<PreparedRequest> requests_;
  PointToPointBatch batch_;
  DeviceBatch device_batch_;
  std::optional<RequestRun> run_;
  Status status_;
};

Status run_joins(const std::vector<GroupItem>& items) {
  std::vector<const GroupItem*> joins;
  for (const GroupItem& item : items) {
    if (item.kind == GroupItem::Kind::Join) joins.push_back(&item);
  }
  std::vector<Status> results(joins.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < joins.size(); ++i) threads.emplace_back([&, i] { results[i] = joins[i]->join(); });
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : results) THESEUS_TRY(status);
  return {};
}

// All jobs at once, since one thread may hold several ranks of one communicator.
Status run_jobs(std::deque<CommunicatorJob>& jobs) {
  std::vector<bool> done(jobs.size(), false);
  CommunicatorJob* failed = nullptr;
  const auto advance = [&] {
    bool open = false;
    bool progressed = false;
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (done[i]) continue;
      Advance state = jobs[i].advance();
      if (state == Advance::Failed) {
        failed = &jobs[i];
        return state;
      }
      done[i] = state == Advance::Done;
      open |= !done[i];
      progressed |= state != Advance::Blocked;
    }
    if (!open) return Advance::Done;
    return progressed ? Advance::Progressed : Advance::Blocked;
  };
  const auto move_network = [&]() -> Status {
    for (CommunicatorJob& job : jobs) {
      if (job.impl().links != nullptr) THESEUS_TRY(job.impl().links->progress());
    }
    return {};
  };
  Patience patience(jobs.front().impl());
  for (;;) {
    const Advance state = advance();
    if (state == Advance::Failed) return failed->impl().fail(failed->status());
    if (Status moved = move_network(); !moved.ok()) return jobs.front().impl().fail(moved);
    if (state == Advance::Done) break;
    if (state == Advance::Progressed) {
      patience.progressed();
      continue;
    }
    for (CommunicatorJob& job : jobs) {
      if (job.impl().failed.load(std::memory_order_acquire)) return job.impl().failure_status();
    }
    if (Status status = patience.pause([] { return false; }); !status.ok()) {
      return jobs.front().impl().fail(status);
    }
  }
  for (CommunicatorJob& job : jobs) {
    Communicator::Impl& impl = job.impl();
    if (impl.links != nullptr) THESEUS_TRY(impl.links->flush(Deadline::never().with_cancel(&impl.failed)));
  }
  return {};
}

// Two ranks of one communicator on one stream: the kernel of the first would wait for that of the second, which is
// behind it.
Status check_streams(const std::deque<CommunicatorJob>& jobs) {
  std::map<std::tuple<uint64_t, uint64_t, int, void*>, int> taken;
  for (const CommunicatorJob& job : jobs) {
    Communicator::Impl& impl = job.impl();
    for (void* stream : job.streams()) {
      const auto [at, fresh] = taken.try_emplace({impl.id.high, impl.id.low, impl.ordinal, stream}, impl.self->rank());
      if (fresh) continue;
      return impl.fail(Status::usage("ranks " + std::to_string(at->second) + " and " +
                                     std::to_string(impl.self->rank()) +
                                     " use the same stream of one GPU, on which they would wait for each other: give "
                                     "every rank of a GPU a stream of its own"));
    }
  }
  return {};
}

// Runs the items of communicators that block. `items` belong to `communicators`, sorted by address, so that two threads
// with overlapping groups take the locks in one order. Jobs stand in the order of the calls, as do the kernels that
// they launch on one stream: addresses differ from rank to rank.
Status run_items(const std::vector<GroupItem>& items, const std::vector<Communicator*>& communicators) {
  std::vector<std::unique_lock<OwnedMutex>> locks;
  std::deque<CommunicatorJob> jobs;
  for (Communicator* communicator : communicators) {
    Communicator::Impl& impl = CommunicatorAccess::impl(*communicator);
    locks.emplace_back(impl.running);
    THESEUS_TRY(impl.usable());
  }
  for (const GroupItem& item : items) {
    if (item.kind == GroupItem::Kind::Join ||
        !std::binary_search(communicators.begin(), communicators.end(), item.communicator))
      continue;
    Communicator::Impl& impl = CommunicatorAccess::impl(*item.communicator);
    auto job = std::find_if(jobs.begin(), jobs.end(),
                            [&impl](const CommunicatorJob& known) { return &known.impl() == &impl; });
    if (job == jobs.end()) {
      jobs.emplace_back(*item.communicator);
      job = std::prev(jobs.end());
    }
    THESEUS_TRY(job->add(item));
  }
  THESEUS_TRY(check_streams(jobs));
  for (CommunicatorJob& job : jobs) THESEUS_TRY(job.begin());
  return jobs.empty() ? Status() : run_jobs(jobs);
}

Status run_group(std::vector<GroupItem> items) {
  THESEUS_TRY(run_joins(items));
  std::vector<Communicator*> blocking;
  std::vector<Communicator*> non_blocking;
  for (const GroupItem& item : items) {
    if (item.kind == GroupItem::Kind::Join) continue;
    std::vector<Communicator*>& kind = item.communicator->blocking() ? blocking : non_blocking;
    if (std::find(kind.begin(), kind.end(), item.communicator) == kind.end()) kind.push_back(item.communicator);
  }
  std::sort(blocking.begin(), blocking.end());
  for (Communicator* communicator : non_blocking) {
    Communicator::Impl& impl = CommunicatorAccess::impl(*communicator);
    impl.progress.submit([items, communicator, &impl] {
      Status status = run_items(items, {communicator});
      if (!status.ok()) impl.set_failure(status);
      return status;
    });
  }
  for (Communicator* communicator : blocking) CommunicatorAccess::impl(*communicator).progress.drain();
  THESEUS_TRY(run_items(items, blocking));
  if (!non_blocking.empty()) return {Code::InProgress, "operation in progress"};
  return {};
}

}  // namespace

void group_add(GroupItem item) { group.items.push_back(std::move(item)); }

Status group_error(Status status) {
  if (group.error.ok()) group.error = status;
  return status;
}

void group_start() { ++group.depth; }

int group_depth() { return group.depth; }

Status group_end() {
  if (group.depth == 0) return Status::usage("ncclGroupEnd without ncclGroupStart");
  if (--group.depth > 0) return {};
  std::vector<GroupItem> items = std::move(group.items);
  const Status error = group.error;
  group.items.clear();
  group.error = {};
  if (!error.ok()) return error;
  return items.empty() ? Status() : run_group(std::move(items));
}

}  // namespace theseus
