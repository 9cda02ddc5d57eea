// Groups of calls, and the buffers that queued calls keep alive.
#include <pybind11/pybind11.h>

#include "bindings/handle.h"
#include "bindings/module.h"

namespace py = pybind11;

namespace theseus::bindings {

namespace {

// A pointer, so that a thread that ends inside a group touches no Python object without the GIL.
std::vector<Buffer>& held() {
  thread_local auto* buffers = new std::vector<Buffer>;
  return *buffers;
}

void end_group() {
  Status status;
  {
    py::gil_scoped_release release;
    status = group_end();
  }
  if (group_depth() == 0) held().clear();
  if (status.code() != Code::InProgress) check(status);
}

}  // namespace

void hold_for_group(Buffer&& buffer) { held().push_back(std::move(buffer)); }

void bind_group(py::module_& module) {
  module.def("group_start", &group_start);
  module.def("group_end", &end_group);
  module.def("group_depth", &group_depth);
}

}  // namespace theseus::bindings
