#include "drivers/cuda/texts.h"

#include <string>

#include "base/embedded.h"

namespace theseus {
std::span<const EmbeddedText> embedded_drivers();
}  // namespace theseus

namespace theseus::cuda {

std::vector<SourceText> emulator_headers() {
  std::vector<SourceText> headers;
  for (const EmbeddedText& file : embedded_drivers())
    headers.push_back({std::string(file.name), std::string(file.text)});
  return headers;
}

}  // namespace theseus::cuda
