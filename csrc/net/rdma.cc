#include "net/rdma.h"

#include <filesystem>
#include <fstream>
#include <system_error>

namespace theseus {
namespace {

// "4: ACTIVE" where it is up.
bool is_up(const std::filesystem::path& port) {
  std::string state;
  std::getline(std::ifstream(port / "state"), state);
  return state.find("ACTIVE") != std::string::npos;
}

}  // namespace

bool has_rdma(const std::string& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator device(folder, error), end; !error && device != end;
       device.increment(error)) {
    std::error_code none;
    for (std::filesystem::directory_iterator port(device->path() / "ports", none); !none && port != end;
         port.increment(none)) {
      if (is_up(port->path())) return true;
    }
  }
  return false;
}

}  // namespace theseus
