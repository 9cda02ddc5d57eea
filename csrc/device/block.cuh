// The TB that a piece of device code runs in: who am I, how many are we, meet. The same text serves NVRTC, nvcc, and
// g++ for the emulator, whose words come from drivers/cuda/emu_device.h.
#pragma once

#include "device/kernel_abi.h"

#if defined(__CUDACC__)
// A kernel takes one struct by value. At most kMostThreads threads a TB, which leaves each 128 registers.
#define THESEUS_KERNEL(name, Parameters, parameters) \
  extern "C" __global__ void __launch_bounds__(512, 1) name(const __grid_constant__ Parameters parameters)
#define THESEUS_SHARED(Type, name) __shared__ Type name
// In every loop that waits. A GPU has nothing better to do.
#define THESEUS_PAUSE() static_cast<void>(0)
#define THESEUS_UNROLL _Pragma("unroll")
// Loops whose length is not known: unrolling them costs the compiler's time and nobody gains.
#define THESEUS_ROLL _Pragma("unroll 1")
#define THESEUS_INLINE __device__ __forceinline__
// Kept out of line, so that a kernel holds the text once, however many of its instructions use it.
#define THESEUS_CALL __device__ __noinline__
#else
#include "drivers/cuda/emu_device.h"
#define THESEUS_UNROLL _Pragma("GCC unroll 8")
#define THESEUS_ROLL
#define THESEUS_INLINE inline __attribute__((always_inline))
#define THESEUS_CALL __attribute__((noinline))
#endif

namespace theseus::device {

inline constexpr U32 kMostThreads = 512;

struct Tb {
  THESEUS_INLINE static U32 thread() { return threadIdx.x; }
  THESEUS_INLINE static U32 threads() { return blockDim.x; }
  THESEUS_INLINE static U32 index() { return blockIdx.x; }
  THESEUS_INLINE static U32 count() { return gridDim.x; }
  // One thread does what needs no company: it looks at flags, and writes them.
  THESEUS_INLINE static bool leads() { return threadIdx.x == 0; }
  // What any thread of the TB did before it, all threads see after it.
  THESEUS_INLINE static void barrier() { __syncthreads(); }
};

}  // namespace theseus::device
