// The interpreting kernels of all types and reductions, compiled into this program: what the executor compiles at run
// time, one at a time. A kernel here is a function that takes a thread and a request (emu::Entry).
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "base/types.h"
#include "device/divide.cuh"
#include "device/interpret.cuh"

namespace theseus::testing {

template <device::Type kType, device::Reduction kReduction, device::Protocol kProtocol>
void interpret_entry(const emu::Thread* thread, const void* request) {
  emu::enter(thread);
  THESEUS_SHARED(device::Frame, frame);
  device::interpret<device::Numbers<kType, kReduction>, kProtocol, /*kScaling=*/true>(
      *static_cast<const device::Request*>(request), frame);
}

template <class Element>
void divide_entry(const emu::Thread* thread, const void* division) {
  emu::enter(thread);
  device::divide<Element>(*static_cast<const device::Division*>(division));
}

inline constexpr size_t kReductions = 4;

// Sum, Prod, Max or Min.
inline emu::Entry interpreter_of(DataType type, RedOp op, device::Protocol protocol) {
  static constexpr auto table = []<size_t... kPlace>(std::index_sequence<kPlace...>) {
    return std::array<emu::Entry, sizeof...(kPlace)>{
        interpret_entry<static_cast<device::Type>(kPlace / (2 * kReductions)),
                        static_cast<device::Reduction>(kPlace / 2 % kReductions),
                        static_cast<device::Protocol>(kPlace % 2)>...};
  }(std::make_index_sequence<kDataTypes * kReductions * 2>());
  return table[(static_cast<size_t>(type) * kReductions + static_cast<size_t>(op)) * 2 + static_cast<size_t>(protocol)];
}

// Null for floating types, which are not divided.
inline emu::Entry division_of(DataType type) {
  switch (type) {
    case DataType::Int8: return divide_entry<signed char>;
    case DataType::Uint8: return divide_entry<unsigned char>;
    case DataType::Int32: return divide_entry<int>;
    case DataType::Uint32: return divide_entry<unsigned>;
    case DataType::Int64: return divide_entry<long long>;
    case DataType::Uint64: return divide_entry<unsigned long long>;
    default: return nullptr;
  }
}

}  // namespace theseus::testing
