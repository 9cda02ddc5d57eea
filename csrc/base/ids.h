// 128-bit identifiers, and the 128 opaque bytes that NCCL calls a unique id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace theseus {

struct Id128 {
  uint64_t high = 0;
  uint64_t low = 0;

  bool operator==(const Id128&) const = default;
  bool is_zero() const { return high == 0 && low == 0; }
  // 32 hexadecimal digits.
  std::string to_string() const;
};

// Names one communicator in every process that takes part; knowing it is what proves membership.
using CommId = Id128;

// A fresh, unguessable id.
Id128 random_id();

// The id that every rank derives alike from `parent` and a label ("split 3 color 1"): not secret-preserving against
// someone who knows the parent, which no stranger does.
Id128 derive_id(const Id128& parent, std::string_view label);

// 128 opaque bytes that name one communicator to be: where its rendezvous listens, and the secret that proves
// membership. Good for one communicator. net/rendezvous.h reads and writes them.
struct UniqueId {
  char bytes[128];
};

}  // namespace theseus

template <>
struct std::hash<theseus::Id128> {
  size_t operator()(const theseus::Id128& id) const noexcept { return id.high ^ (id.low * 0x9e3779b97f4a7c15u); }
};
