// Memory of one message on its way over TCP, header in front so that both go out in one piece.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

#include "transport/tcp_wire.h"

namespace theseus {

// Grows to the largest size asked for. Moving one hands the memory on.
class TcpSlot {
 public:
  TcpSlot() = default;
  TcpSlot(TcpSlot&& other) noexcept : memory_(std::move(other.memory_)), capacity_(std::exchange(other.capacity_, 0)) {}
  TcpSlot& operator=(TcpSlot&& other) noexcept {
    memory_ = std::move(other.memory_);
    capacity_ = std::exchange(other.capacity_, 0);
    return *this;
  }

  // False where there is no memory. What was in it is lost where it has to grow.
  bool reserve(size_t bytes, size_t slot_bytes) {
    if (bytes <= capacity_ && memory_ != nullptr) [[likely]]
      return true;
    const size_t capacity = std::max(bytes, std::min(slot_bytes, std::max(std::bit_ceil(bytes), kSmallest)));
    const size_t room = (sizeof(TcpHeader) + capacity + 63) / 64 * 64;
    memory_.reset(static_cast<uint8_t*>(std::aligned_alloc(64, room)));
    capacity_ = memory_ == nullptr ? 0 : capacity;
    return memory_ != nullptr;
  }
  bool valid() const { return memory_ != nullptr; }
  TcpHeader* header() const { return reinterpret_cast<TcpHeader*>(memory_.get()); }
  uint8_t* payload() const { return memory_.get() + sizeof(TcpHeader); }
  uint8_t* start() const { return memory_.get(); }
  // Of header and payload.
  size_t length() const { return sizeof(TcpHeader) + header()->bytes; }

 private:
  static constexpr size_t kSmallest = 4096;
  struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
  };
  std::unique_ptr<uint8_t, Free> memory_;
  size_t capacity_ = 0;
};

}  // namespace theseus
