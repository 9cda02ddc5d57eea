// A borrowed view of somebody else's memory: NumPy, torch, DLPack, the array interfaces of host and CUDA, the buffer
// protocol. No copy.
#pragma once

#include <Python.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"

namespace theseus::bindings {

// A Python element type in NCCL's words. Complex numbers travel as two reals; bool as uint8.
struct ElementType {
  DataType type = DataType::Uint8;
  int parts = 1;
  bool boolean = false;

  bool operator==(const ElementType&) const = default;
};

// Who asks, for messages: function "all_gather", argument "recv".
struct Role {
  const char* function;
  const char* argument;
  bool output;
};

// Keeps the memory alive and, under the buffer protocol, locked against resizing, until it is destroyed (GIL held).
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { release(); }

  // Throws InvalidArgument naming function and argument: not an array, not contiguous, read-only output, neither host
  // memory nor a CUDA device's. Which of them a communicator takes is check_place()'s to say (device_use.h).
  static Buffer borrow(PyObject* object, const Role& role);

  void* data() const { return data_; }
  size_t elements() const { return elements_; }                // as Python counts them
  size_t count() const { return elements_ * element_.parts; }  // as the runtime counts them
  const ElementType& element() const { return element_; }
  size_t bytes() const { return count() * size_of(element_.type); }
  bool on_device() const { return on_device_; }  // its owner says that it is a CUDA device's
  uintptr_t stream() const {
    return stream_;
  }  // that its owner works on, as the CUDA array interface numbers it; 0: none

 private:
  bool borrow_protocol(PyObject* object, const Role& role);
  bool borrow_torch(pybind11::handle object, const Role& role);
  bool borrow_array_interface(pybind11::handle object, const Role& role);
  bool borrow_cuda_interface(pybind11::handle object, const Role& role);
  // What both array interfaces have in common.
  void take_interface(pybind11::handle object, const pybind11::dict& interface, const char* name, const Role& role);
  bool borrow_dlpack(pybind11::handle object, const Role& role);
  void release();

  void* data_ = nullptr;
  size_t elements_ = 0;
  ElementType element_;
  bool on_device_ = false;
  uintptr_t stream_ = 0;
  Py_buffer view_{};        // view_.obj set: the buffer protocol is in use
  pybind11::object owner_;  // otherwise: what keeps the memory alive
};

// "float32", "complex64", "bool": the name of an element type as NumPy and torch spell it.
std::string name_of(const ElementType& element);

// Throws InvalidArgument that begins with the function's name: "all_gather: send ...".
[[noreturn]] void refuse(const Role& role, const std::string& why);

}  // namespace theseus::bindings
