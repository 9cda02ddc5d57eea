// How the bindings of the driver call it: ints for addresses and handles, no GIL meanwhile, exceptions for failures.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <type_traits>

#include "bindings/errors.h"
#include "drivers/cuda/api.h"

namespace theseus::bindings {

using Address = uintptr_t;

inline void* at(Address address) { return reinterpret_cast<void*>(address); }
inline Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }
inline cuda::Stream stream_at(Address handle) { return reinterpret_cast<cuda::Stream>(handle); }
inline cuda::Event event_at(Address handle) { return reinterpret_cast<cuda::Event>(handle); }

// What `function` returns: a Status, which becomes nothing, or a Result, which becomes its value.
template <class Call>
auto call(const Call& function) {
  auto outcome = [&] {
    pybind11::gil_scoped_release release;
    return function();
  }();
  if constexpr (std::is_same_v<decltype(outcome), Status>) {
    check(outcome);
  } else {
    return take(std::move(outcome));
  }
}

}  // namespace theseus::bindings
