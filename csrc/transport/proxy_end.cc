#include "transport/proxy_end.h"

#include <cstring>
#include <string>

namespace theseus {
namespace {

// The counter and the words are written by different sides: a cache line each.
constexpr size_t kPostedAt = 64;
constexpr size_t kSlotsAt = 256;
static_assert(kPostedAt + ProxyEnd::kSlots * sizeof(device::U64) <= kSlotsAt);

// Kernels use load_posted() and its like (device/flags.cuh); this is the other side of the same flags.
uint64_t load_acquire(const device::U64* flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }
void store_release(device::U64* flag, uint64_t value) { __atomic_store_n(flag, value, __ATOMIC_RELEASE); }

}  // namespace

Result<void*> ProxyEnd::allocate(cuda::Driver& driver, uint32_t slot_bytes) {
  const size_t bytes = kSlotsAt + size_t{kSlots} * slot_bytes;
  Result<void*> memory = driver.allocate_pinned(bytes);
  if (memory.ok()) std::memset(*memory, 0, bytes);
  return memory;
}

ProxyEnd::ProxyEnd(cuda::Driver& driver, void* memory, uint32_t slot_bytes) : driver_(driver), memory_(memory) {
  auto* const start = static_cast<uint8_t*>(memory);
  link_.taken = reinterpret_cast<device::U64*>(start);
  link_.posted = reinterpret_cast<device::U64*>(start + kPostedAt);
  link_.slots = start + kSlotsAt;
  link_.slot_bytes = slot_bytes;
  link_.slot_count = kSlots;
}

ProxyEnd::~ProxyEnd() { (void)driver_.release_pinned(memory_); }

Result<std::unique_ptr<ProxySender>> ProxySender::make(cuda::Driver& driver, uint32_t slot_bytes) {
  Result<void*> memory = allocate(driver, slot_bytes);
  if (!memory.ok()) return memory.status();
  return std::unique_ptr<ProxySender>(new ProxySender(driver, *memory, slot_bytes));
}

// A message is the port's as soon as it is copied, so the kernel may have its slot back.
Result<bool> ProxySender::advance() {
  bool moved = false;
  for (; !settled(); ++moved_) {
    const uint64_t number = moved_ + 1;
    const uint64_t posted = load_acquire(word());
    if (posted >> 48 != (number & 0xffff)) break;
    const auto bytes = static_cast<uint32_t>(posted);
    if (bytes > link().slot_bytes) {
      return Status::internal("a kernel posted a message of " + std::to_string(bytes) + " bytes in a slot of " +
                              std::to_string(link().slot_bytes));
    }
    void* const room = port_->acquire(bytes);
    if (room == nullptr) break;
    std::memcpy(room, slot(), bytes);
    tag_.hash = static_cast<uint32_t>(posted >> 32) & 0xffff;
    port_->set_tag(tag_);
    port_->commit(bytes);
    store_release(taken(), number);
    moved = true;
  }
  return moved;
}

Result<std::unique_ptr<ProxyReceiver>> ProxyReceiver::make(cuda::Driver& driver, uint32_t slot_bytes) {
  Result<void*> memory = allocate(driver, slot_bytes);
  if (!memory.ok()) return memory.status();
  return std::unique_ptr<ProxyReceiver>(new ProxyReceiver(driver, *memory, slot_bytes));
}

Result<bool> ProxyReceiver::advance() {
  bool moved = false;
  for (; !settled(); ++moved_) {
    if (moved_ >= load_acquire(taken()) + kSlots) break;
    const Message* const message = port_->peek();
    if (message == nullptr) break;
    if (message->bytes > link().slot_bytes) {
      return Status::internal("a message of " + std::to_string(message->bytes) + " bytes came for slots of " +
                              std::to_string(link().slot_bytes));
    }
    if (message->bytes > 0) std::memcpy(slot(), message->data, message->bytes);
    store_release(word(),
                  device::posted_word(moved_ + 1, message->signature_hash, static_cast<uint32_t>(message->bytes)));
    port_->release();
    moved = true;
  }
  return moved;
}

}  // namespace theseus
