// Small messages among all ranks over the control plane, whatever the device.
#include "base/env.h"
#include "runtime/impl.h"

namespace theseus {

Result<std::vector<std::string>> Communicator::exchange(const std::string& blob) {
  if (group_depth() > 0) return Status::usage("an exchange cannot be part of a group");
  impl_->progress.drain();
  const std::lock_guard lock(impl_->running);
  THESEUS_TRY(impl_->usable());
  if (impl_->star == nullptr) return std::vector<std::string>{blob};
  const Deadline deadline = Deadline::after(settings::init_timeout()).with_cancel(&impl_->failed);
  Result<std::vector<std::string>> all = impl_->star->all_gather(blob, deadline);
  // A rank that does not answer leaves the star out of step, so that the communicator is done for.
  if (!all.ok()) return impl_->fail(all.status());
  return all;
}

}  // namespace theseus
