// _core.Work: asynchronous work and the memory it uses.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cmath>

#include "bindings/handle.h"
#include "bindings/module.h"

namespace py = pybind11;

namespace theseus::bindings {

namespace {

struct Orphan {
  std::shared_ptr<Work> work;
  std::vector<Buffer> buffers;
};

// Guarded by the GIL. Never destroyed: at exit the interpreter's objects must not be touched.
std::vector<Orphan>& orphans() {
  static auto* list = new std::vector<Orphan>;
  return *list;
}

void clear_finished_orphans() {
  std::erase_if(orphans(), [](const Orphan& orphan) { return orphan.work->done(); });
}

}  // namespace

WorkHandle::WorkHandle(std::shared_ptr<Work> work, std::vector<Buffer> buffers)
    : work_(std::move(work)), buffers_(std::move(buffers)) {
  if (!orphans().empty()) clear_finished_orphans();
}

WorkHandle::~WorkHandle() {
  if (!work_->done()) orphans().push_back({std::move(work_), std::move(buffers_)});
}

bool WorkHandle::done() {
  if (!work_->done()) return false;
  buffers_.clear();
  return true;
}

void WorkHandle::wait(double seconds) {
  constexpr double kSlice = 0.2;  // how late Ctrl-C may be noticed
  const bool endless = seconds < 0;
  for (;;) {
    const double slice = endless ? kSlice : std::min(seconds, kSlice);
    Status status;
    {
      py::gil_scoped_release release;
      status = work_->wait(slice);
    }
    if (done()) return check(work_->status());
    if (status.code() != Code::Timeout) check(status);
    seconds -= slice;
    if (!endless && seconds <= 0) {
      check(status.ok() ? Status::timeout("the work was not done within the time given to wait(); it is still running")
                        : status);
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

py::object WorkHandle::exception() { return done() ? error_of(work_->status()) : py::object(py::none()); }

void bind_work(py::module_& module) {
  py::class_<WorkHandle>(module, "Work")
      .def("done", &WorkHandle::done)
      .def("wait", &WorkHandle::wait, py::arg("seconds") = -1.0)
      .def("exception", &WorkHandle::exception);
}

}  // namespace theseus::bindings
