// Memory of the library's own, and registrations. On host memory registering speeds nothing up (what ncclMemAlloc gives
// is shared already), so a registration is only remembered, to answer for it.
#include "nccl_api/memory.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "drivers/cuda/retired.h"
#include "nccl_api/api.h"
#include "nccl_api/errors.h"
#include "nccl_api/fallback.h"
#include "nccl_api/forward.h"
#include "nccl_api/groups.h"
#include "nccl_api/handles.h"
#include "nccl_api/real_handles.h"
#include "nccl_api/twins.h"
#include "runtime/device_rank.h"

namespace theseus::nccl_api {
namespace {

enum class Kind { Buffer, Window };

struct Registration {
  Kind kind;
  ncclComm_t comm;
  void* pointer;
};

// Handles are numbers that no address equals, and are never used twice: a stale one is refused, not followed.
struct Registrations {
  std::mutex mutex;
  std::unordered_map<uintptr_t, Registration> entries;
  uintptr_t last = 0;

  void* add(const Registration& registration) {
    const std::lock_guard lock(mutex);
    entries[++last] = registration;
    return reinterpret_cast<void*>(last);
  }

  // The registered pointer, or null where `handle` is not one of `kind` and `comm`.
  void* find(Kind kind, ncclComm_t comm, void* handle) {
    const std::lock_guard lock(mutex);
    const auto found = entries.find(reinterpret_cast<uintptr_t>(handle));
    const bool match = found != entries.end() && found->second.kind == kind && found->second.comm == comm;
    return match ? found->second.pointer : nullptr;
  }

  bool remove(Kind kind, ncclComm_t comm, void* handle) {
    if (find(kind, comm, handle) == nullptr) return false;
    const std::lock_guard lock(mutex);
    return entries.erase(reinterpret_cast<uintptr_t>(handle)) == 1;
  }
};

Registrations& registrations() {
  static Registrations* const all =
      new Registrations;  // never destroyed: threads may still call while the process ends
  return *all;
}

constexpr int kWindowFlags =
    NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING | NCCL_WIN_GIN_ONLY | NCCL_WIN_CFT_COUNTED;

ncclResult_t check_buffer(const char* function, const void* buffer, size_t size) {
  if (buffer == nullptr) return invalid_argument(function, "buff is NULL");
  if (size == 0) return invalid_argument(function, "size is 0");
  return ncclSuccess;
}

// When no kernel of ours can use it any more: at once where none is under way, and then with the outcome.
Status give_back_to_real(void* memory) {
  const Result<cuda::Driver*> driver = device_driver();
  if (!driver.ok()) return driver.status();
  const Result<cuda::PointerInfo> info = (*driver)->pointer_info(memory);
  if (!info.ok()) return info.status();
  const auto outcome = std::make_shared<Status>();
  cuda::Retired::of(**driver, std::max(info->ordinal, 0)).add([memory, outcome] {
    *outcome = real_status(*real_nccl(), "ncclMemFree", real_nccl()->ncclMemFree(memory));
  });
  return *outcome;
}

// On GPUs windows are the real NCCL's, if all ranks have it; else they are remembered as on the host.
ncclResult_t register_with_twin(ncclComm_t comm, Communicator* communicator, void* buff, size_t size, ncclWindow_t* win,
                                int winFlags) {
  constexpr const char* kFunction = "ncclCommWindowRegister";
  const auto remember = [comm, buff, win] {
    *win = static_cast<ncclWindow_t>(registrations().add({Kind::Window, comm, buff}));
    return Status();
  };
  return give_to_twin(communicator, {.function = kFunction,
                                     .everyone = true,
                                     .run =
                                         [buff, size, win, winFlags](const RealNccl& nccl, ncclComm_t twin) {
                                           if (nccl.ncclCommWindowRegister == nullptr) return lacks(nccl, kFunction);
                                           return real_status(
                                               nccl, kFunction,
                                               nccl.ncclCommWindowRegister(twin, buff, size, win, winFlags));
                                         },
                                     // NCCL gives no window, and no error, for memory that it cannot make one of.
                                     .after =
                                         [communicator, win] {
                                           if (*win != nullptr) RealHandles::all().add_window(*win, communicator);
                                         },
                                     .without = remember});
}

}  // namespace

void forget_registrations(ncclComm_t comm) {
  Registrations& all = registrations();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.entries, [comm](const auto& entry) { return entry.second.comm == comm; });
}

ncclResult_t ncclMemAlloc(void** ptr, size_t size) noexcept {
  if (ptr == nullptr) return invalid_argument("ncclMemAlloc", "ptr is NULL");
  *ptr = nullptr;
  if (size == 0) return ncclSuccess;
  // Its windows need memory of its own kind, which serves us as well.
  if (const RealNccl* real = real_nccl_of_gpus(); real != nullptr && real->ncclMemAlloc != nullptr) {
    const Status status = real_status(*real, "ncclMemAlloc", real->ncclMemAlloc(ptr, size));
    if (status.ok()) RealHandles::all().add_memory(*ptr);
    return report(status);
  }
  const Result<void*> memory = mem_alloc(size);
  if (!memory.ok()) return fail(memory.status());
  *ptr = memory.value();
  return ncclSuccess;
}

ncclResult_t ncclMemFree(void* ptr) noexcept {
  if (ptr == nullptr) return ncclSuccess;
  return report(RealHandles::all().take_memory(ptr) ? give_back_to_real(ptr) : mem_free(ptr));
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buff, size_t size, void** handle) noexcept {
  constexpr const char* kFunction = "ncclCommRegister";
  if (find(comm) == nullptr) return refuse_handle(kFunction, comm);
  if (handle == nullptr) return invalid_argument(kFunction, "handle is NULL");
  *handle = nullptr;
  if (const ncclResult_t checked = check_buffer(kFunction, buff, size); checked != ncclSuccess) return checked;
  *handle = registrations().add({Kind::Buffer, comm, buff});
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) noexcept {
  constexpr const char* kFunction = "ncclCommDeregister";
  if (find(comm) == nullptr) return refuse_handle(kFunction, comm);
  if (registrations().remove(Kind::Buffer, comm, handle)) return ncclSuccess;
  return invalid_argument(kFunction, "handle is not a registration of this communicator");
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
                                    int winFlags) noexcept {
  constexpr const char* kFunction = "ncclCommWindowRegister";
  if (find(comm) == nullptr) return refuse_handle(kFunction, comm);
  if (win == nullptr) return invalid_argument(kFunction, "win is NULL");
  *win = nullptr;
  if (const ncclResult_t checked = check_buffer(kFunction, buff, size); checked != ncclSuccess) return checked;
  if ((winFlags & ~kWindowFlags) != 0) {
    return invalid_argument(kFunction,
                            "winFlags " + std::to_string(winFlags) + " has unknown bits: 1, 2, 4 and 8 are known");
  }
  if (reinterpret_cast<uintptr_t>(buff) % NCCL_WIN_REQUIRED_ALIGNMENT != 0) {
    return invalid_argument(kFunction, "buff must lie at a multiple of " + std::to_string(NCCL_WIN_REQUIRED_ALIGNMENT) +
                                           " bytes, as what ncclMemAlloc gives does");
  }
  if (Communicator* communicator = find(comm); communicator->on_gpu()) {
    return note_group_error(register_with_twin(comm, communicator, buff, size, win, winFlags));
  }
  *win = static_cast<ncclWindow_t>(registrations().add({Kind::Window, comm, buff}));
  return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win) noexcept {
  constexpr const char* kFunction = "ncclCommWindowDeregister";
  Communicator* communicator = find(comm);
  if (communicator == nullptr) return refuse_handle(kFunction, comm);
  if (win != nullptr && RealHandles::all().owner(win) == communicator) {
    return give_to_twin(communicator, {.function = kFunction,
                                       .run =
                                           [win](const RealNccl& nccl, ncclComm_t twin) {
                                             return real_status(nccl, kFunction,
                                                                nccl.ncclCommWindowDeregister(twin, win));
                                           },
                                       .after = [win] { RealHandles::all().remove_window(win); }});
  }
  if (registrations().remove(Kind::Window, comm, win)) return ncclSuccess;
  return invalid_argument(kFunction, "win is not a window of this communicator");
}

ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void** outUserPtr) noexcept {
  constexpr const char* kFunction = "ncclWinGetUserPtr";
  const Communicator* communicator = find(comm);
  if (communicator == nullptr) return refuse_handle(kFunction, comm);
  if (outUserPtr == nullptr) return invalid_argument(kFunction, "outUserPtr is NULL");
  if (win != nullptr && RealHandles::all().owner(win) == communicator) {
    const RealNccl& nccl = *real_nccl();
    if (nccl.ncclWinGetUserPtr == nullptr) return fail(lacks(nccl, kFunction));
    return report(real_status(nccl, kFunction, nccl.ncclWinGetUserPtr(twin_of(communicator), win, outUserPtr)));
  }
  *outUserPtr = registrations().find(Kind::Window, comm, win);
  if (*outUserPtr != nullptr) return ncclSuccess;
  return invalid_argument(kFunction, "win is not a window of this communicator");
}

}  // namespace theseus::nccl_api
