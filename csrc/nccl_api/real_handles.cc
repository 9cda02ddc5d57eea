#include "nccl_api/real_handles.h"

namespace theseus::nccl_api {

RealHandles& RealHandles::all() {
  static RealHandles* const table = new RealHandles;  // never destroyed: threads may still call while the process ends
  return *table;
}

void RealHandles::add_window(ncclWindow_t window, const Communicator* communicator) {
  const std::lock_guard lock(mutex_);
  windows_[window] = communicator;
}

const Communicator* RealHandles::owner(ncclWindow_t window) {
  const std::lock_guard lock(mutex_);
  const auto found = windows_.find(window);
  return found == windows_.end() ? nullptr : found->second;
}

void RealHandles::remove_window(ncclWindow_t window) {
  const std::lock_guard lock(mutex_);
  windows_.erase(window);
}

void RealHandles::add_device_communicator(const Communicator* communicator) {
  const std::lock_guard lock(mutex_);
  ++device_communicators_[communicator];
}

bool RealHandles::take_device_communicator(const Communicator* communicator) {
  const std::lock_guard lock(mutex_);
  const auto found = device_communicators_.find(communicator);
  if (found == device_communicators_.end()) return false;
  if (--found->second == 0) device_communicators_.erase(found);
  return true;
}

void RealHandles::add_memory(void* memory) {
  const std::lock_guard lock(mutex_);
  memory_.insert(memory);
}

bool RealHandles::take_memory(void* memory) {
  const std::lock_guard lock(mutex_);
  return memory_.erase(memory) > 0;
}

void RealHandles::forget(const Communicator* communicator) {
  const std::lock_guard lock(mutex_);
  std::erase_if(windows_, [communicator](const auto& entry) { return entry.second == communicator; });
  device_communicators_.erase(communicator);
}

}  // namespace theseus::nccl_api
