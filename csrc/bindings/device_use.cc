#include "bindings/device_use.h"

#include <chrono>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/env.h"
#include "bindings/errors.h"
#include "runtime/device_rank.h"

namespace py = pybind11;

namespace theseus::bindings {
namespace {

// Streams by number, as the CUDA array interface and the driver have them.
constexpr uintptr_t kLegacyStream = 1;

void* stream_at(const char* function, py::handle number) {
  if (!PyLong_Check(number.ptr())) {
    throw StatusError(Status::argument(std::string(function) + ": stream is a " + Py_TYPE(number.ptr())->tp_name +
                                       "; pass its handle as an int, a stream of theseus_py.device, torch or CuPy, or "
                                       "what has __cuda_stream__"));
  }
  const auto handle = number.cast<uintptr_t>();
  return handle == kLegacyStream ? nullptr : reinterpret_cast<void*>(handle);
}

class StreamWork final : public Work {
 public:
  StreamWork(cuda::Driver& driver, int device, cuda::Event reached)
      : driver_(driver), device_(device), reached_(reached) {}
  StreamWork(const StreamWork&) = delete;
  StreamWork& operator=(const StreamWork&) = delete;
  ~StreamWork() override { (void)driver_.destroy_event(device_, reached_); }

  bool done() const override { return status().code() != Code::InProgress; }
  Status status() const override {
    const Result<bool> reached = driver_.query(device_, reached_);
    if (!reached.ok()) return reached.status();
    return *reached ? Status() : Status(Code::InProgress, "the stream has not come to this call yet");
  }
  Status wait(double seconds) override {
    constexpr auto kPause = std::chrono::microseconds(20);
    const Deadline deadline = Deadline::after(seconds);
    while (!done()) {
      if (deadline.expired()) return Status::timeout("the stream has not come to this call within the time given");
      std::this_thread::sleep_for(kPause);
    }
    return status();
  }

 private:
  cuda::Driver& driver_;
  int device_;
  cuda::Event reached_;
};

}  // namespace

cuda::Driver* gpu_driver() { return take(device_driver()); }

void* stream_of(const char* function, py::handle stream, const Buffer& buffer) {
  if (stream.is_none()) return buffer.stream() == kLegacyStream ? nullptr : reinterpret_cast<void*>(buffer.stream());
  if (PyLong_Check(stream.ptr())) return stream_at(function, stream);
  if (py::hasattr(stream, "__cuda_stream__")) {
    const py::tuple named = stream.attr("__cuda_stream__")();
    if (named.size() == 2) return stream_at(function, named[1]);
  }
  for (const char* name : {"cuda_stream", "ptr", "handle"}) {
    if (py::hasattr(stream, name)) return stream_at(function, py::object(stream.attr(name)));
  }
  return stream_at(function, stream);
}

void check_place(const Role& role, const Buffer& buffer, cuda::Driver* driver) {
  if (driver == nullptr) {
    if (!buffer.on_device()) return;
    refuse(role,
           "lies in GPU memory, but this communicator works on host memory: set THESEUS_DEVICE=cuda before it is made, "
           "or pass a host array");
  }
  if (buffer.on_device() || buffer.elements() == 0) return;
  // Pinned and managed memory can be reached from GPUs.
  if (take(driver->pointer_info(buffer.data())).kind != cuda::PointerKind::Unregistered) return;
  refuse(role, "lies in host memory, but THESEUS_DEVICE=" + settings::device() +
                   " has this communicator work on GPUs: pass an array of theseus_py.device, CuPy or numba or a torch "
                   "CUDA tensor, or set THESEUS_DEVICE=host");
}

Result<std::shared_ptr<Work>> work_of_stream(cuda::Driver& driver, int device, void* stream) {
  const Result<cuda::Event> made = driver.create_event(device);
  if (!made.ok()) return made.status();
  auto work = std::make_shared<StreamWork>(driver, device, *made);
  THESEUS_TRY(driver.record(device, *made, static_cast<cuda::Stream>(stream)));
  return std::shared_ptr<Work>(std::move(work));
}

}  // namespace theseus::bindings
