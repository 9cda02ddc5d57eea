// Registers the translator from StatusError to Python's exceptions.
#include <pybind11/pybind11.h>

#include "bindings/resccl/errors.h"
#include "bindings/resccl/module.h"

namespace py = pybind11;

namespace theseus::resccl {
namespace {

py::object class_of(Code code) {
  if (code == Code::InvalidArgument) return py::reinterpret_borrow<py::object>(PyExc_ValueError);
  if (code == Code::InvalidUsage) return py::module_::import("resccl.errors").attr("LimitError");
  return py::reinterpret_borrow<py::object>(PyExc_RuntimeError);
}

}  // namespace

void bind_errors(py::module_&) {
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const StatusError& error) {
      PyErr_SetString(class_of(error.status().code()).ptr(), error.what());
    }
  });
}

}  // namespace theseus::resccl
