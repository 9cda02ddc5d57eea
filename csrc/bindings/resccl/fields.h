// Reading dicts from Python: every field is known, of the right type and in range before it is used.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>

#include "bindings/resccl/errors.h"

namespace theseus::resccl {

// ValueError for `what` of `where`: "plan, rank 3, TB 0, step 5: recv is 'x', no integer".
[[noreturn]] inline void refuse(const std::string& where, const std::string& why) {
  throw StatusError(Status::argument(where + ": " + why));
}

inline std::string text_of(pybind11::handle value) {
  std::string text = pybind11::repr(value).cast<std::string>();
  constexpr size_t limit = 60;
  return text.size() <= limit ? text : text.substr(0, limit) + "...";
}

// Any Python integer (also NumPy's, but no bool) that T holds.
template <class T>
T integer(pybind11::handle value, const std::string& where, const char* what) {
  const bool is_integer = PyIndex_Check(value.ptr()) != 0 && !PyBool_Check(value.ptr());
  if (!is_integer) refuse(where, std::string(what) + " is " + text_of(value) + ", no integer");
  const auto number = pybind11::reinterpret_steal<pybind11::object>(PyNumber_Index(value.ptr()));
  if (!number) throw pybind11::error_already_set();
  int overflow = 0;
  const long long found = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0 || found < std::numeric_limits<T>::min() || found > std::numeric_limits<T>::max()) {
    refuse(where, std::string(what) + " is " + text_of(number) + ", out of range");
  }
  return static_cast<T>(found);
}

inline bool flag(pybind11::handle value, const std::string& where, const char* what) {
  if (!PyBool_Check(value.ptr())) refuse(where, std::string(what) + " is " + text_of(value) + ", not True or False");
  return value.ptr() == Py_True;
}

inline std::string text(pybind11::handle value, const std::string& where, const char* what) {
  if (!PyUnicode_Check(value.ptr())) refuse(where, std::string(what) + " is " + text_of(value) + ", no text");
  return value.cast<std::string>();
}

// A list or tuple.
inline pybind11::sequence list(pybind11::handle value, const std::string& where, const char* what) {
  if (!PyList_Check(value.ptr()) && !PyTuple_Check(value.ptr())) {
    refuse(where, std::string(what) + " is " + text_of(value) + ", no list");
  }
  return pybind11::reinterpret_borrow<pybind11::sequence>(value);
}

// A dict whose keys are among `known`: a misspelt field must not pass for one left out.
class Fields {
 public:
  Fields(pybind11::handle value, std::string where, std::initializer_list<const char*> known)
      : where_(std::move(where)) {
    if (!PyDict_Check(value.ptr())) refuse(where_, text_of(value) + " is no dict");
    dict_ = pybind11::reinterpret_borrow<pybind11::dict>(value);
    for (const auto& item : dict_) {
      bool found = false;
      for (const char* name : known) {
        if (PyUnicode_Check(item.first.ptr()) && PyUnicode_CompareWithASCIIString(item.first.ptr(), name) == 0) {
          found = true;
        }
      }
      if (!found) refuse(where_, "there is no field " + text_of(item.first));
    }
  }

  const std::string& where() const { return where_; }
  // A null handle where the field is not there.
  pybind11::handle find(const char* name) const { return PyDict_GetItemString(dict_.ptr(), name); }
  pybind11::handle get(const char* name) const {
    const pybind11::handle value = find(name);
    if (!value) refuse(where_, std::string("the field '") + name + "' is missing");
    return value;
  }
  template <class T>
  T integer(const char* name) const {
    return resccl::integer<T>(get(name), where_, name);
  }
  template <class T>
  T integer(const char* name, T otherwise) const {
    const pybind11::handle value = find(name);
    return value ? resccl::integer<T>(value, where_, name) : otherwise;
  }
  bool flag(const char* name, bool otherwise) const {
    const pybind11::handle value = find(name);
    return value ? resccl::flag(value, where_, name) : otherwise;
  }
  std::string text(const char* name) const { return resccl::text(get(name), where_, name); }
  std::string text(const char* name, const char* otherwise) const {
    const pybind11::handle value = find(name);
    return value ? resccl::text(value, where_, name) : otherwise;
  }
  // Empty where the field is not there.
  pybind11::sequence list(const char* name) const {
    const pybind11::handle value = find(name);
    if (!value) return pybind11::tuple();
    return resccl::list(value, where_, name);
  }

 private:
  pybind11::dict dict_;
  std::string where_;
};

}  // namespace theseus::resccl
