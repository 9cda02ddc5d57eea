// What PointToPointBatch is where buffers are on a GPU: sends and receives that run together, as one launch.
#pragma once

#include <vector>

#include "runtime/impl.h"

namespace theseus {

class DeviceBatch {
 public:
  explicit DeviceBatch(Communicator::Impl& impl) : impl_(impl) {}

  Status add(const Communicator::Impl::PointToPoint& operation);
  // As PointToPointBatch has them; all that one batch holds for a peer goes one way.
  Status add_send(int peer, const void* data, size_t bytes, int channel, const SignatureTag& tag);
  Status add_recv(int peer, void* data, size_t bytes, int channel, const SignatureTag& tag);
  void add_copy(void* to, const void* from, size_t bytes) { copies_.push_back({to, from, bytes}); }
  void add_stream(void* stream);

  // What a launch would wait for: call once, before launch(), for all communicators of a group.
  Status make_ready();
  // Queues all of it; nothing where there is none.
  Status launch();
  bool empty() const { return transfers_.empty() && copies_.empty(); }
  // Of the calls, each once, in their order.
  const std::vector<cuda::Stream>& streams() const { return streams_; }

 private:
  Communicator::Impl& impl_;
  std::vector<CudaTransfer> transfers_;
  std::vector<CudaCopy> copies_;
  std::vector<cuda::Stream> streams_;
  std::vector<Communicator::Impl::PointToPoint> to_self_;
  std::vector<Communicator::Impl::PointToPoint> from_self_;
};

}  // namespace theseus
