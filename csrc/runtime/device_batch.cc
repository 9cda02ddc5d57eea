#include "runtime/device_batch.h"

#include <algorithm>

#include "runtime/point_to_point.h"

namespace theseus {

void DeviceBatch::add_stream(void* stream) {
  auto* const queue = static_cast<cuda::Stream>(stream);
  if (std::find(streams_.begin(), streams_.end(), queue) == streams_.end()) streams_.push_back(queue);
}

Status DeviceBatch::add_send(int peer, const void* data, size_t bytes, int, const SignatureTag& tag) {
  transfers_.push_back({true, peer, const_cast<void*>(data), bytes, tag.signature});
  return {};
}

Status DeviceBatch::add_recv(int peer, void* data, size_t bytes, int, const SignatureTag& tag) {
  transfers_.push_back({false, peer, data, bytes, tag.signature});
  return {};
}

Status DeviceBatch::add(const Communicator::Impl::PointToPoint& operation) {
  add_stream(operation.stream);
  const int rank = impl_.self->rank();
  if (operation.peer == rank) {
    auto& own = operation.sends ? to_self_ : from_self_;
    own.push_back(operation);
    return {};
  }
  const SignatureTag tag = transfer_tag(rank, Collective::SendRecv, operation.count, operation.type, 0);
  return operation.sends ? add_send(operation.peer, operation.data, operation.bytes, kPointToPointChannel, tag)
                         : add_recv(operation.peer, operation.data, operation.bytes, kPointToPointChannel, tag);
}

Status DeviceBatch::make_ready() {
  THESEUS_TRY(match_self(to_self_, from_self_));
  for (size_t i = 0; i < to_self_.size(); ++i) add_copy(from_self_[i].data, to_self_[i].data, to_self_[i].bytes);
  if (empty()) return {};
  Status ready = impl_.device->transfers().make_ready(transfers_);
  // The others would wait in their kernels.
  if (!ready.ok()) return impl_.fail(ready);
  return impl_.check_device();
}

Status DeviceBatch::launch() {
  if (empty()) return {};
  Status launched = impl_.device->transfers().launch(transfers_, copies_, streams_);
  return launched.ok() ? launched : impl_.fail(launched);
}

}  // namespace theseus
