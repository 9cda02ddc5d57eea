"""Small kernels of the checks' own: one text for NVRTC and for the emulator's compiler, compiled by the driver."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from theseus_py import _core

# What one text needs on both sides; the library's own is in csrc/device.
_WORDS = """
#pragma once
#if defined(__CUDACC__)
#define THESEUS_KERNEL(name, Parameters, parameters) extern "C" __global__ void name(const Parameters parameters)
#define THESEUS_PAUSE() __nanosleep(100)
__device__ inline unsigned acquire(const unsigned* word) {
  unsigned value;
  asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
__device__ inline void release(unsigned* word, unsigned value) {
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
#else
#include "drivers/cuda/emu_device.h"
inline unsigned acquire(const unsigned* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
inline void release(unsigned* word, unsigned value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
#endif
"""

NUMBER = """
struct Out { unsigned* out; };
THESEUS_KERNEL(number, Out, p) {
  const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
  p.out[index] += index + 1000 * gridDim.x;
}
"""
# A ring of TBs, each waiting for the one before: ends only where all run at once.
RING = """
struct Out { unsigned* out; };
THESEUS_KERNEL(ring, Out, p) {
  for (unsigned round = 1; round <= 10; ++round) {
    if (blockIdx.x == 0) {
      release(&p.out[0], round);
      while (acquire(&p.out[gridDim.x - 1]) < round) THESEUS_PAUSE();
    } else {
      while (acquire(&p.out[blockIdx.x - 1]) < round) THESEUS_PAUSE();
      release(&p.out[blockIdx.x], round);
    }
  }
}
"""
# Flags in pinned memory, both ways, while it runs.
ANSWER = """
struct Out { unsigned* out; };
THESEUS_KERNEL(answer, Out, p) {
  while (acquire(&p.out[0]) == 0) THESEUS_PAUSE();
  release(&p.out[1], p.out[2] + 1);
}
"""
# 16 bytes a thread and turn: what a plain copy by so many TBs reaches.
COPY = """
struct alignas(16) Vector { unsigned long long low, high; };
struct Copy { Vector* to; const Vector* from; unsigned long long vectors; };
THESEUS_KERNEL(copy, Copy, p) {
  const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
  for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < p.vectors; i += stride)
    p.to[i] = p.from[i];
}
"""


@dataclass(frozen=True)
class Kernel:
    """A kernel that is loaded on a device."""

    driver: _core.Driver
    device: int
    module: int
    function: int

    @staticmethod
    def load(driver: _core.Driver, device: int, name: str, text: str) -> Kernel:
        source = '#include "check/words.h"\n#line 1 "check.cu"\n' + text
        image = driver.compile(device, "check.cu", source, {"check/words.h": _WORDS}, [])
        module = driver.load(device, image)
        return Kernel(driver, device, module, driver.function(device, module, name))

    def launch(self, grid: int, block: int, parameters: bytes, stream: int = 0, cooperative: bool = False) -> None:
        self.driver.launch(self.device, self.function, grid, block, 0, stream, parameters, cooperative)

    def unload(self) -> None:
        self.driver.unload(self.device, self.module)


def words(*values: int) -> bytes:
    """Parameters that are pointers and 64-bit numbers."""
    return struct.pack(f"<{len(values)}Q", *values)
