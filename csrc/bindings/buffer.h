// A borrowed view of somebody else's host memory: NumPy, torch, DLPack, the array interface, the buffer protocol. No
// copy.
#pragma once

#include <Python.h>
#include <pybind11/pybind11.h>

#include <cstddef>
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

  // Throws InvalidArgument naming function and argument: not an array, not contiguous, read-only output, not host
  // memory.
  static Buffer borrow(PyObject* object, const Role& role);

  void* data() const { return data_; }
  size_t elements() const { return elements_; }                // as Python counts them
  size_t count() const { return elements_ * element_.parts; }  // as the runtime counts them
  const ElementType& element() const { return element_; }
  size_t bytes() const { return count() * size_of(element_.type); }

 private:
  bool borrow_protocol(PyObject* object, const Role& role);
  bool borrow_torch(pybind11::handle object, const Role& role);
  bool borrow_array_interface(pybind11::handle object, const Role& role);
  bool borrow_dlpack(pybind11::handle object, const Role& role);
  void release();

  void* data_ = nullptr;
  size_t elements_ = 0;
  ElementType element_;
  Py_buffer view_{};        // view_.obj set: the buffer protocol is in use
  pybind11::object owner_;  // otherwise: what keeps the memory alive
};

// "float32", "complex64", "bool": the name of an element type as NumPy and torch spell it.
std::string name_of(const ElementType& element);

// Throws InvalidArgument that begins with the function's name: "all_gather: send ...".
[[noreturn]] void refuse(const Role& role, const std::string& why);

}  // namespace theseus::bindings
