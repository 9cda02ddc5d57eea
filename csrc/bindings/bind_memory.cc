// _core.Memory: memory from mem_alloc as a writable buffer, freed when the last array over it goes.
#include <pybind11/pybind11.h>

#include "bindings/errors.h"
#include "bindings/module.h"
#include "runtime/communicator.h"

namespace py = pybind11;

namespace theseus::bindings {

namespace {

class Memory {
 public:
  explicit Memory(size_t bytes) : data_(take(mem_alloc(bytes == 0 ? 1 : bytes))), bytes_(bytes) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { (void)mem_free(data_); }

  py::buffer_info info() const {
    return {data_, 1, py::format_descriptor<uint8_t>::format(), 1, {static_cast<py::ssize_t>(bytes_)}, {1}};
  }

 private:
  void* data_;
  size_t bytes_;
};

}  // namespace

void bind_memory(py::module_& module) {
  py::class_<Memory>(module, "Memory", py::buffer_protocol())
      .def(py::init<size_t>(), py::arg("bytes"))
      .def_buffer([](const Memory& memory) { return memory.info(); });
}

}  // namespace theseus::bindings
