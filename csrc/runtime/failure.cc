// How a communicator learns of failure, and passes it on.
#include "base/fork.h"
#include "runtime/impl.h"

namespace theseus {

void Communicator::Impl::set_failure(const Status& status) {
  {
    const std::lock_guard lock(failure_mutex);
    if (failure.ok()) failure = status;
  }
  failed.store(true, std::memory_order_release);
  if (DeviceRank* const gpu = abortable.load(std::memory_order_acquire); gpu != nullptr) gpu->abort();
}

Status Communicator::Impl::fail(const Status& status) {
  set_failure(status);
  if (star != nullptr && !aborted.load(std::memory_order_acquire)) star->fail(failure_status());
  return failure_status();
}

Status Communicator::Impl::failure_status() const {
  const std::lock_guard lock(failure_mutex);
  return failure;
}

Status Communicator::Impl::usable() const {
  if (failed.load(std::memory_order_acquire)) return failure_status();
  const Phase now = phase.load(std::memory_order_acquire);
  if (now == Phase::Ready) [[likely]]
    return check_not_forked();
  if (now == Phase::Joining) return Status::usage("this communicator is still joining: wait until it is ready");
  return Status::usage("this communicator was finalized");
}

void Communicator::Impl::report_waiting(bool waits) {
  if (star == nullptr) return;
  if (!waits || running_tag == nullptr) return star->set_progress(0, 0);
  star->set_progress(running_tag->signature.request, running_tag->hash, describe(running_tag->signature));
}

Status Communicator::Impl::check_device() {
  if (device == nullptr) return {};
  Status fault = device->fault();
  return fault.ok() ? fault : fail(fault);
}

// Called between looks while a request waits: the watch thread sets `failed` for all that the control star knows.
// Only when the star has nobody left to speak for a rank (rank 0's process ended after its goodbye) does a local look
// at the processes find the dead.
Status Communicator::Impl::check_alive() {
  if (failed.load(std::memory_order_acquire)) return failure_status();
  if (links == nullptr) return {};
  const uint64_t now = now_ns();
  if (now < next_local_check) return {};
  next_local_check = now + 500'000'000;
  const int dead = links->dead_local_peer();
  if (dead < 0) return {};
  return Status::remote("rank " + std::to_string(dead) + " ended (process " + std::to_string(peers[dead].pid) + " on " +
                        peers[dead].host_name + ")");
}

}  // namespace theseus
