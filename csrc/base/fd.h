// An owned file descriptor, which a forked child gives up (base/fork.h).
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/result.h"

namespace theseus {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int descriptor);
  Fd(Fd&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)), generation_(other.generation_) {}
  Fd& operator=(Fd&& other) noexcept;
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  int get() const { return descriptor_; }
  bool valid() const { return descriptor_ >= 0; }
  explicit operator bool() const { return valid(); }
  // Closes it.
  void reset();
  // Hands it to the caller.
  int release();

 private:
  int descriptor_ = -1;
  uint32_t generation_ = 0;
};

// SystemError of errno for a call that makes descriptors; EMFILE and ENFILE name the limit and how to raise it.
Status descriptor_error(const std::string& what, int error);

}  // namespace theseus
