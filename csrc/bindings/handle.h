// The Python side's handle of a communicator, and of asynchronous work with the memory it uses.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bindings/buffer.h"
#include "bindings/device_use.h"
#include "bindings/errors.h"
#include "runtime/communicator.h"

namespace theseus::bindings {

class Handle {
 public:
  explicit Handle(Communicator* communicator) : communicator_(communicator), gpu_(gpu_driver()) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle();

  // Throws InvalidUsage after destroy or abort.
  Communicator* get() const {
    if (communicator_ == nullptr) [[unlikely]]
      refuse_use();
    return communicator_;
  }
  bool is_open() const { return communicator_ != nullptr; }
  // The driver of the GPU that buffers are on; null: host memory.
  cuda::Driver* gpu() const { return gpu_; }
  // Buffer::borrow(), of memory that this communicator works on.
  Buffer borrow(pybind11::handle object, const Role& role) const {
    Buffer buffer = Buffer::borrow(object.ptr(), role);
    if (gpu_ != nullptr || buffer.on_device()) [[unlikely]]
      check_place(role, buffer, gpu_);
    return buffer;
  }
  Communicator* take() { return std::exchange(communicator_, nullptr); }

  // Memory that calls of a non-blocking communicator still use; let go when none is outstanding.
  void hold(Buffer&& buffer) { held_.push_back(std::move(buffer)); }
  bool in_progress() {
    if (get()->in_progress()) return true;
    held_.clear();
    return false;
  }

  // A non-blocking communicator answers InProgress: no failure.
  void check_call(const Status& status) const {
    if (status.ok()) [[likely]]
      return;
    if (status.code() == Code::InProgress && communicator_ != nullptr && !communicator_->blocking()) return;
    throw StatusError(status);
  }

 private:
  [[noreturn]] static void refuse_use();

  Communicator* communicator_;
  cuda::Driver* gpu_;
  std::vector<Buffer> held_;
};

// Work, and the buffers it reads and writes: they are let go when it is done. A handle that Python drops earlier hands
// both to a list that later calls clear, so that memory in use is never freed.
class WorkHandle {
 public:
  WorkHandle(std::shared_ptr<Work> work, std::vector<Buffer> buffers);
  WorkHandle(const WorkHandle&) = delete;
  WorkHandle& operator=(const WorkHandle&) = delete;
  ~WorkHandle();

  bool done();
  // Seconds; negative: for ever. Throws what the work failed with, or Timeout. Ctrl-C interrupts the wait, not the
  // work.
  void wait(double seconds);
  pybind11::object exception();

 private:
  std::shared_ptr<Work> work_;
  std::vector<Buffer> buffers_;
};

// Buffers of calls queued in this thread's group, until its outermost end.
void hold_for_group(Buffer&& buffer);

}  // namespace theseus::bindings
