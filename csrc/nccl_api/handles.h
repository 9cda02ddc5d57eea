// ncclComm_t: the address of a slot in one static table.
//
// Slots are never unmapped and are reused in turn, so a handle can be judged without trusting it: an address outside
// the table, or between slots, was never a communicator; an empty slot was one and is gone. No lock, no look-up: a
// collective pays a subtraction, a comparison and one load.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "nccl_api/include/nccl.h"
#include "runtime/communicator.h"

namespace theseus::nccl_api {

struct alignas(64) CommSlot {
  // What collectives use: null while the slot is free or its communicator suspended.
  std::atomic<Communicator*> active{nullptr};
  // The communicator from adopt() to release(), suspended or not.
  std::atomic<Communicator*> owned{nullptr};
  std::atomic<bool> suspended{false};
  std::atomic<bool> finalized{false};
  std::atomic<bool> revoked{false};
  std::atomic<bool> grow_id_outstanding{false};
  int device = 0;  // what ncclCommCuDevice answers: there is one host, so 0 unless ncclCommInitAll was given a list
};

// At most this many communicators at a time in a process.
inline constexpr size_t kCommSlots = 16384;
extern CommSlot comm_slots[kCommSlots];

// The slot that `comm` points to, or null for NULL and for addresses that no communicator ever had.
inline CommSlot* slot_of(ncclComm_t comm) {
  const uintptr_t offset = reinterpret_cast<uintptr_t>(comm) - reinterpret_cast<uintptr_t>(&comm_slots[0]);
  if (offset >= sizeof(comm_slots) || offset % sizeof(CommSlot) != 0) [[unlikely]] {
    return nullptr;
  }
  return &comm_slots[offset / sizeof(CommSlot)];
}

// The communicator to run collectives on, or null: then refuse_handle() says why.
inline Communicator* usable(ncclComm_t comm) {
  CommSlot* slot = slot_of(comm);
  if (slot == nullptr) [[unlikely]] {
    return nullptr;
  }
  return slot->active.load(std::memory_order_acquire);
}

// The communicator for everything else (also while suspended), or null.
inline Communicator* find(ncclComm_t comm) {
  CommSlot* slot = slot_of(comm);
  return slot == nullptr ? nullptr : slot->owned.load(std::memory_order_acquire);
}

// InvalidArgument for NULL, foreign and destroyed handles, InvalidUsage for a suspended one; with the reason.
ncclResult_t refuse_handle(const char* function, ncclComm_t comm);

// Puts a new communicator into a slot of its own. NULL when all slots are taken.
ncclComm_t adopt(Communicator* communicator, int device);
// Empties the slot and returns what it held: exactly one of several callers gets it, the others null.
Communicator* release(ncclComm_t comm);

}  // namespace theseus::nccl_api
