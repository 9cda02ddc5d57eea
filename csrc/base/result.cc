#include "base/result.h"

#include <cstring>

namespace theseus {

const std::string& Status::message() const {
  static const std::string none;
  return message_ == nullptr ? none : *message_;
}

Status Status::from_errno(const std::string& what, int error) {
  return {Code::SystemError, what + ": " + std::strerror(error)};
}

}  // namespace theseus
