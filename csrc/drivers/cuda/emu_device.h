// What kernel text needs besides C++ when g++ compiles it for the emulator: CUDA's words, and a TB made of OS threads.
//
// Device code includes this where __CUDACC__ is not defined. The kernel text then becomes one shared object; the
// emulator (emu_block.cc) calls each kernel once a thread of each TB. Every CUDA thread is an OS thread: what races on
// a GPU races here, and ThreadSanitizer sees it. The twins that device code defines for CUDA itself:
//
//   THESEUS_KERNEL(name, Parameters, parameters) { ... }   extern "C" __global__ void name(const Parameters parameters)
//   THESEUS_SHARED(Type, name);                            __shared__ Type name;   (a named type; arrays in a struct)
//   THESEUS_DYNAMIC_SHARED(name);                          extern __shared__ __align__(16) unsigned char name[];
//   THESEUS_BARRIER(id, threads);                          bar.sync id, threads;
//   THESEUS_PAUSE();                                       nothing, or __nanosleep: in every loop that waits
//
// Shared memory is filled with 0xCD, so that a read before a write shows. Warps are 32 threads, the last one of a TB
// as many as are left; the *_sync functions take the whole warp, whatever their mask says.
#pragma once

#if defined(__CUDACC__)
#error "emu_device.h is for the emulator alone: include it where __CUDACC__ is not defined"
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

namespace theseus::emu {

// Changes with anything below it; a module of another version is refused.
inline constexpr uint32_t kAbiVersion = 1;
inline constexpr uint32_t kWarp = 32;
inline constexpr uint32_t kNamedBarriers = 16;

// What the emulator gives a thread. Only this and the entry functions cross between a module and the library.
struct Thread {
  uint32_t thread;        // in its TB
  uint32_t block;         // in the grid
  uint32_t threads;       // of a TB
  uint32_t blocks;        // of the grid
  void* state;            // of the TB, for the functions
  unsigned char* shared;  // the TB's dynamic shared memory
  uint64_t* exchange;     // one word a thread of the TB
  // Waits until `threads` threads came to barrier `id` of the TB. From kNamedBarriers on: one a warp.
  void (*barrier)(void* state, uint32_t id, uint32_t threads);
  // The TB's one variable with this key.
  void* (*variable)(void* state, const void* key, size_t bytes);
  // Lets others run: called again and again by a thread that waits.
  void (*pause)();
};
using Entry = void (*)(const Thread*, const void* parameters);

struct Index {
  uint32_t x = 0, y = 0, z = 0;
};

// Of the thread that runs. Set by the entry functions. One for all files of a program that hold kernels, since they
// share what device code they have in common; modules are compiled with hidden visibility, and have their own.
inline thread_local const Thread* self = nullptr;
inline thread_local Index thread_index, block_index, block_size, grid_size;

inline void enter(const Thread* thread) {
  self = thread;
  thread_index = {thread->thread, 0, 0};
  block_index = {thread->block, 0, 0};
  block_size = {thread->threads, 1, 1};
  grid_size = {thread->blocks, 1, 1};
}

template <class Type, class Key>
Type& shared_variable(Key) {
  static char key = 0;
  return *static_cast<Type*>(self->variable(self->state, &key, sizeof(Type)));
}

inline uint32_t warp() { return self->thread / kWarp; }
inline uint32_t lanes() {
  const uint32_t left = self->threads - warp() * kWarp;
  return left < kWarp ? left : kWarp;
}
inline void sync_warp() { self->barrier(self->state, kNamedBarriers + warp(), lanes()); }

// What lane `from` of the warp gives; its own value where there is no such lane.
template <class T>
T shuffle(T value, uint32_t from) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  std::memcpy(&self->exchange[self->thread], &value, sizeof value);
  sync_warp();
  if (from < lanes()) std::memcpy(&value, &self->exchange[warp() * kWarp + from], sizeof value);
  sync_warp();
  return value;
}

inline uint32_t ballot(bool vote) {
  self->exchange[self->thread] = vote ? 1 : 0;
  sync_warp();
  uint32_t votes = 0;
  for (uint32_t lane = 0; lane < lanes(); ++lane) votes |= uint32_t(self->exchange[warp() * kWarp + lane]) << lane;
  sync_warp();
  return votes;
}

}  // namespace theseus::emu

// Macros, because CUDA's names are global and belong to no namespace.
#define threadIdx (::theseus::emu::thread_index)
#define blockIdx (::theseus::emu::block_index)
#define blockDim (::theseus::emu::block_size)
#define gridDim (::theseus::emu::grid_size)
#define warpSize 32

inline void __syncthreads() { theseus::emu::self->barrier(theseus::emu::self->state, 0, theseus::emu::self->threads); }
inline void __syncwarp(uint32_t = 0xffffffff) { theseus::emu::sync_warp(); }
inline void __nanosleep(uint32_t) { theseus::emu::self->pause(); }
template <class T>
T __shfl_sync(uint32_t, T value, int lane) {
  return theseus::emu::shuffle(value, uint32_t(lane) % theseus::emu::kWarp);
}
template <class T>
T __shfl_xor_sync(uint32_t, T value, int lanes) {
  return theseus::emu::shuffle(value, (theseus::emu::self->thread % theseus::emu::kWarp) ^ uint32_t(lanes));
}
inline uint32_t __ballot_sync(uint32_t, int vote) { return theseus::emu::ballot(vote != 0); }
inline int __any_sync(uint32_t, int vote) { return theseus::emu::ballot(vote != 0) != 0; }
inline int __all_sync(uint32_t, int vote) { return theseus::emu::ballot(vote == 0) == 0; }

#define THESEUS_KERNEL(name, Parameters, parameters)                                             \
  static void name##_body(const Parameters parameters);                                          \
  extern "C" {                                                                                   \
  __attribute__((visibility("default"))) extern const uint32_t name##_abi;                       \
  __attribute__((visibility("default"))) extern const uint32_t name##_bytes;                     \
  const uint32_t name##_abi = ::theseus::emu::kAbiVersion;                                       \
  const uint32_t name##_bytes = sizeof(Parameters);                                              \
  __attribute__((visibility("default"))) void name(const ::theseus::emu::Thread* theseus_thread, \
                                                   const void* theseus_parameters) {             \
    ::theseus::emu::enter(theseus_thread);                                                       \
    name##_body(*static_cast<const Parameters*>(theseus_parameters));                            \
  }                                                                                              \
  }                                                                                              \
  static void name##_body([[maybe_unused]] const Parameters parameters)

#define THESEUS_SHARED(Type, name) Type& name = ::theseus::emu::shared_variable<Type>([] {})
#define THESEUS_DYNAMIC_SHARED(name) unsigned char* const name = ::theseus::emu::self->shared
#define THESEUS_BARRIER(id, threads) ::theseus::emu::self->barrier(::theseus::emu::self->state, id, threads)
#define THESEUS_PAUSE() ::theseus::emu::self->pause()
