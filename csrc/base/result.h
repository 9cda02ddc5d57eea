// Status and Result<T>: how every layer below the C ABI and the bindings reports failure.
// Codes equal ncclResult_t (nccl.h), so that the C API returns them unchanged.
#pragma once

#include <cassert>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace theseus {

enum class Code : int {
  Success = 0,
  UnhandledCudaError = 1,
  SystemError = 2,
  InternalError = 3,
  InvalidArgument = 4,
  InvalidUsage = 5,
  RemoteError = 6,
  InProgress = 7,
  Timeout = 8,
};

// A code and, on failure, one sentence that names the thing at fault and the way out. Success is two words: it is made
// and looked at several times in every request.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message)
      : code_(code), message_(std::make_unique<const std::string>(std::move(message))) {}
  Status(const Status& other)
      : code_(other.code_),
        message_(other.message_ == nullptr ? nullptr : std::make_unique<const std::string>(*other.message_)) {}
  Status(Status&&) = default;
  Status& operator=(const Status& other) { return *this = Status(other); }
  Status& operator=(Status&&) = default;

  static Status system(std::string message) { return {Code::SystemError, std::move(message)}; }
  static Status internal(std::string message) { return {Code::InternalError, std::move(message)}; }
  static Status argument(std::string message) { return {Code::InvalidArgument, std::move(message)}; }
  static Status usage(std::string message) { return {Code::InvalidUsage, std::move(message)}; }
  static Status remote(std::string message) { return {Code::RemoteError, std::move(message)}; }
  static Status timeout(std::string message) { return {Code::Timeout, std::move(message)}; }
  // errno's text appended: errno_status("cannot create the shared segment")
  static Status from_errno(const std::string& what, int error);

  bool ok() const { return code_ == Code::Success; }
  explicit operator bool() const { return ok(); }
  Code code() const { return code_; }
  const std::string& message() const;

 private:
  Code code_ = Code::Success;
  std::unique_ptr<const std::string> message_;  // null: none
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit by design, `return value;`
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }  // NOLINT

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

// Returns the failing Status of `expression` from the enclosing function.
#define THESEUS_TRY(expression)                                                                                   \
  do {                                                                                                            \
    if (::theseus::Status theseus_try_status = (expression); !theseus_try_status.ok()) return theseus_try_status; \
  } while (0)

}  // namespace theseus
