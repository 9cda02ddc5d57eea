// The headers that the emulator adds to every kernel's text.
#pragma once

#include <vector>

#include "drivers/cuda/api.h"

namespace theseus::cuda {

std::vector<SourceText> emulator_headers();

}  // namespace theseus::cuda
