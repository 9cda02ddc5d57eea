// Runs one kernel of the emulator: every thread of every TB at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "drivers/cuda/emu_device.h"
#include "drivers/cuda/emu_threads.h"

namespace theseus::cuda {

struct EmuGrid {
  emu::Entry entry = nullptr;
  const void* parameters = nullptr;
  uint32_t blocks = 1;
  uint32_t threads = 1;  // of a block
  size_t shared_bytes = 0;
};

// Returns when the last thread did.
void run_grid(EmuThreads& threads, const EmuGrid& grid);

}  // namespace theseus::cuda
