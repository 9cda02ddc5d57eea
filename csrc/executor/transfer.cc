#include "executor/transfer.h"

#include <algorithm>

#include "device/copy.h"

namespace theseus {

SendTransfer::SendTransfer(std::vector<SendPort*> ports, const void* data, size_t bytes, size_t piece_bytes,
                           const SignatureTag& tag)
    : ports_(std::move(ports)),
      data_(static_cast<const uint8_t*>(data)),
      bytes_(bytes),
      piece_bytes_(piece_bytes),
      tag_(tag) {}

Advance SendTransfer::advance() {
  bool progressed = false;
  const size_t total = bytes_ > kLargestPiecewiseFetch ? kFetchIfCrowded : bytes_;
  if (!begun_ && ports_.size() == 1 && bytes_ > piece_bytes_ && ports_[0]->can_reference(data_, bytes_, total)) {
    ports_[0]->set_tag(tag_);
    if (!ports_[0]->post_reference(data_, bytes_)) return Advance::Blocked;
    ticket_ = ports_[0]->posted();
    begun_ = true;
    offset_ = bytes_;
    progressed = true;
  }
  while (!posted_all()) {
    SendPort& port = *ports_[turn_];
    const size_t piece = std::min(piece_bytes_, bytes_ - offset_);
    port.set_tag(tag_);
    void* slot = port.acquire(piece);
    if (slot == nullptr) return progressed ? Advance::Progressed : Advance::Blocked;
    copy_bytes(slot, data_ + offset_, piece);
    port.commit(piece);
    begun_ = true;
    offset_ += piece;
    turn_ = (turn_ + 1) % ports_.size();
    progressed = true;
  }
  if (ticket_ != 0 && ports_[0]->released() < ticket_) return progressed ? Advance::Progressed : Advance::Blocked;
  return Advance::Done;
}

RecvTransfer::RecvTransfer(std::vector<RecvPort*> ports, void* data, size_t bytes, size_t piece_bytes,
                           const SignatureTag& tag)
    : ports_(std::move(ports)),
      data_(static_cast<uint8_t*>(data)),
      bytes_(bytes),
      piece_bytes_(piece_bytes),
      tag_(tag) {}

Advance RecvTransfer::advance() {
  bool progressed = false;
  while (!begun_ || offset_ < bytes_) {
    RecvPort& port = *ports_[turn_];
    const Message* message = port.peek();
    if (message == nullptr) return progressed ? Advance::Progressed : Advance::Blocked;
    if (!take(port, *message)) return Advance::Failed;
    turn_ = (turn_ + 1) % ports_.size();
    begun_ = true;
    progressed = true;
  }
  return Advance::Done;
}

bool RecvTransfer::take(RecvPort& port, const Message& message) {
  const bool whole = message.kind != MessageKind::Copied;
  const size_t expected = whole ? bytes_ : std::min(piece_bytes_, bytes_ - offset_);
  if (message.signature_hash != tag_.hash || message.bytes != expected) {
    status_ = mismatch(tag_.signature, port.peer_signature());
    return false;
  }
  if (message.data != nullptr) {
    copy_bytes(data_ + offset_, message.data, message.bytes);
  } else if (message.bytes > 0) {
    status_ = port.fetch(data_ + offset_, 0, message.bytes);
    if (!status_.ok()) return false;
  }
  offset_ += message.bytes;
  port.release();
  return true;
}

}  // namespace theseus
