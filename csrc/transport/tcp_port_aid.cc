// The sending port as first aid sees it: which messages nobody carries, and what became of those that others took on.
#include <algorithm>
#include <bit>
#include <cstdlib>

#include "transport/tcp_kernel.h"
#include "transport/tcp_port.h"

namespace theseus {
namespace {

constexpr double kBufferSeconds = 0.004;
constexpr double kSmallestBuffer = 64 << 10;
constexpr double kLargestBuffer = 512 << 10;

}  // namespace

void TcpSendPort::fit_buffer(double rate) {
  if (!socket_.valid() || options_.pacing != nullptr) return;
  const int wanted = static_cast<int>(std::clamp(rate * kBufferSeconds, kSmallestBuffer, kLargestBuffer));
  // Small changes are not worth a system call.
  if (buffer_ != 0 && std::abs(wanted - buffer_) < buffer_ / 4) return;
  buffer_ = wanted;
  set_send_buffer(socket_.fd(), wanted);
}

void TcpSendPort::hold_back(bool held, int allowance) {
  held_back_ = held;
  allowance_ = std::max(allowance, offset_ > 0 ? 1 : 0);
}

std::optional<uint64_t> TcpSendPort::neglected(Which which) const {
  const uint64_t end = std::min(posted_, window_end());
  for (uint64_t sequence = acked_; sequence < end; ++sequence) {
    const uint8_t flags = at(sequence).flags;
    if ((flags & (kTaken | kCarried | kArrived)) != 0) continue;
    const bool begun = (flags & kWired) != 0 || (sequence == next_ && offset_ > 0);
    const bool orphaned = !begun && sequence < next_;
    if (orphaned || lost() || which == Which::All || (which == Which::Waiting && !begun)) return sequence;
  }
  return std::nullopt;
}

void TcpSendPort::take_on(uint64_t sequence) { at(sequence).flags |= kTaken; }

void TcpSendPort::carried(uint64_t sequence) {
  if (!kept(sequence)) return;
  at(sequence).flags |= kCarried;
  settle();
}

void TcpSendPort::arrived(uint64_t sequence) {
  if (!kept(sequence)) return;
  at(sequence).flags |= kArrived;
  settle();
}

void TcpSendPort::put_back(uint64_t sequence) {
  if (!kept(sequence) || (at(sequence).flags & kArrived) != 0) return;
  at(sequence).flags &= static_cast<uint8_t>(~(kTaken | kCarried));
  handed_ = std::min(handed_, sequence);
  settle();
}

void TcpSendPort::heard(const TcpReceipt& receipt) {
  if (receipt.complete > posted_ || receipt.released > receipt.complete) return;  // nonsense
  receipt_complete_ = std::max(receipt_complete_, receipt.complete);
  receipt_released_ = std::max(receipt_released_, receipt.released);
  receipt_read_ = std::max(receipt_read_, std::min(receipt.read, meter_.handed()));
  for (uint64_t early = receipt.early; early != 0; early &= early - 1) {
    const uint64_t sequence = receipt.complete + 1 + static_cast<uint64_t>(std::countr_zero(early));
    if (kept(sequence)) at(sequence).flags |= kArrived;
  }
  settle();
}

}  // namespace theseus
