#include "base/fd.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>

#include "base/fork.h"

namespace theseus {

Fd::Fd(int descriptor) : descriptor_(descriptor), generation_(fork_generation()) {
  if (descriptor_ >= 0) register_descriptor(descriptor_);
}

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    descriptor_ = std::exchange(other.descriptor_, -1);
    generation_ = other.generation_;
  }
  return *this;
}

void Fd::reset() {
  const int descriptor = release();
  // Of another generation: the fork handler closed it, and the number may belong to someone else by now.
  if (descriptor >= 0 && generation_ == fork_generation()) close(descriptor);
}

int Fd::release() {
  const int descriptor = std::exchange(descriptor_, -1);
  if (descriptor >= 0 && generation_ == fork_generation()) unregister_descriptor(descriptor);
  return descriptor;
}

Status descriptor_error(const std::string& what, int error) {
  if (error != EMFILE && error != ENFILE) return Status::from_errno(what, error);
  if (error == ENFILE) return Status::system(what + ": the whole machine is out of file descriptors (fs.file-max)");
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return Status::system(what + ": this process has all the file descriptors that its limit allows, " +
                        std::to_string(limit.rlim_cur) + " (raise it with 'ulimit -n', up to " +
                        std::to_string(limit.rlim_max) + ")");
}

}  // namespace theseus
