// The end of an integer Avg; a kernel of its own, as every element must be complete first.
#pragma once

#include "device/numbers.cuh"

namespace theseus::device {

template <class Element>
THESEUS_INLINE void divide(const Division& division) {
  Element* const data = static_cast<Element*>(division.data);
  const U64 stride = static_cast<U64>(Tb::count()) * Tb::threads();
  THESEUS_ROLL
  for (U64 i = static_cast<U64>(Tb::index()) * Tb::threads() + Tb::thread(); i < division.count; i += stride) {
    if constexpr (Element(-1) < 0) {
      data[i] = static_cast<Element>(static_cast<long long>(data[i]) / division.ranks);
    } else {
      data[i] = static_cast<Element>(static_cast<U64>(data[i]) / static_cast<U64>(division.ranks));
    }
  }
}

}  // namespace theseus::device
