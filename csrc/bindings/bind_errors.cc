// Registers the translator from StatusError to the classes of theseus_py.errors.
#include <pybind11/pybind11.h>

#include "bindings/errors.h"
#include "bindings/module.h"

namespace py = pybind11;

namespace theseus::bindings {

py::object error_of(const Status& status) {
  if (status.ok()) return py::none();
  return py::module_::import("theseus_py.errors").attr("from_code")(static_cast<int>(status.code()), status.message());
}

void bind_errors(py::module_& module) {
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const StatusError& error) {
      py::object exception = error_of(error.status());
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
    }
  });
  py::dict codes;
  codes["SUCCESS"] = static_cast<int>(Code::Success);
  codes["IN_PROGRESS"] = static_cast<int>(Code::InProgress);
  module.attr("CODES") = codes;
}

}  // namespace theseus::bindings
