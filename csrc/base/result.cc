#include "base/result.h"

#include <cstring>

namespace theseus {

Status Status::from_errno(const std::string& what, int error) {
  return {Code::SystemError, what + ": " + std::strerror(error)};
}

}  // namespace theseus
