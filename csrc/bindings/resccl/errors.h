// How a failing Status becomes a Python exception: ValueError for a wrong argument, resccl.LimitError for what is too
// large, RuntimeError for the rest.
#pragma once

#include <exception>
#include <utility>

#include "base/result.h"

namespace theseus::resccl {

// Thrown only in this folder, and only with the GIL held.
class StatusError : public std::exception {
 public:
  explicit StatusError(Status status) : status_(std::move(status)) {}
  const Status& status() const { return status_; }
  const char* what() const noexcept override { return status_.message().c_str(); }

 private:
  Status status_;
};

inline void check(const Status& status) {
  if (!status.ok()) throw StatusError(status);
}

template <class T>
T take(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

}  // namespace theseus::resccl
