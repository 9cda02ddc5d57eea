#include "nccl_api/handles.h"

#include <mutex>

#include "nccl_api/errors.h"

namespace theseus::nccl_api {

// Zero-initialised: a page of it exists only once a communicator has lived there.
CommSlot comm_slots[kCommSlots];

namespace {

std::mutex slots_mutex;  // guards next_slot and the step from free to owned
size_t next_slot = 0;

}  // namespace

ncclComm_t adopt(Communicator* communicator, int device) {
  const std::lock_guard lock(slots_mutex);
  for (size_t tried = 0; tried < kCommSlots; ++tried) {
    CommSlot& slot = comm_slots[next_slot];
    // In turn, not first-fit: a stale handle stays recognisable until the table has been round once.
    next_slot = (next_slot + 1) % kCommSlots;
    if (slot.owned.load(std::memory_order_acquire) != nullptr) continue;
    slot.suspended = slot.finalized = slot.revoked = slot.grow_id_outstanding = false;
    slot.device = device;
    slot.owned.store(communicator, std::memory_order_release);
    slot.active.store(communicator, std::memory_order_release);
    return reinterpret_cast<ncclComm_t>(&slot);
  }
  return nullptr;
}

Communicator* release(ncclComm_t comm) {
  CommSlot* slot = slot_of(comm);
  if (slot == nullptr) return nullptr;
  const std::lock_guard lock(slots_mutex);
  slot->active.store(nullptr, std::memory_order_release);
  return slot->owned.exchange(nullptr, std::memory_order_acq_rel);
}

ncclResult_t refuse_handle(const char* function, ncclComm_t comm) {
  if (comm == nullptr) return invalid_argument(function, "comm is NULL");
  CommSlot* slot = slot_of(comm);
  if (slot == nullptr) return invalid_argument(function, "comm is not a communicator of this library");
  if (slot->owned.load(std::memory_order_acquire) == nullptr) {
    return invalid_argument(function, "comm has been destroyed or aborted");
  }
  return invalid_usage(function, "the communicator is suspended: call ncclCommResume first");
}

}  // namespace theseus::nccl_api
