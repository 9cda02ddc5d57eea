// How a failing Status becomes a Python exception: theseus_py.errors has one class per code.
#pragma once

#include <exception>
#include <utility>

#include "base/result.h"

namespace theseus::bindings {

// Thrown only in this folder, and only with the GIL held; the translator turns it into the class of its code.
class StatusError : public std::exception {
 public:
  explicit StatusError(Status status) : status_(std::move(status)) {}
  const Status& status() const { return status_; }
  const char* what() const noexcept override { return status_.message().c_str(); }

 private:
  Status status_;
};

inline void check(const Status& status) {
  if (!status.ok()) [[unlikely]]
    throw StatusError(status);
}

template <class T>
T take(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

}  // namespace theseus::bindings
