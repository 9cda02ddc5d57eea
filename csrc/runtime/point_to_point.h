// Sends and receives of one communicator that run together: those of one group, or of one uneven all-to-all.
// Between two ranks they keep their order in each direction; between different peers they are independent.
#pragma once

#include <deque>
#include <map>
#include <vector>

#include "runtime/impl.h"

namespace theseus {

inline constexpr int kCollectiveChannel = 0;
inline constexpr int kPointToPointChannel = 1;

// What both ends of a transfer must agree on. `request`: 0 for sends and receives.
SignatureTag transfer_tag(int rank, Collective collective, size_t count, DataType type, uint32_t request);

// Sends to oneself meet receives from oneself in order; inside one batch, since nobody else could post the other half.
// Why they do not fit, if so.
Status match_self(const std::vector<Communicator::Impl::PointToPoint>& sends,
                  const std::vector<Communicator::Impl::PointToPoint>& receives);

class PointToPointBatch {
 public:
  explicit PointToPointBatch(Communicator::Impl& impl) : impl_(impl) {}

  Status add(const Communicator::Impl::PointToPoint& operation);
  Status add_send(int peer, const void* data, size_t bytes, int channel, const SignatureTag& tag);
  Status add_recv(int peer, void* data, size_t bytes, int channel, const SignatureTag& tag);
  // The part that needs no peer; call once, before advance().
  Status copy_to_self();
  Advance advance();
  const Status& status() const { return status_; }

 private:
  Result<std::vector<SendPort*>> send_ports(int peer, int channel);
  Result<std::vector<RecvPort*>> recv_ports(int peer, int channel);

  Communicator::Impl& impl_;
  std::map<int, std::deque<SendTransfer>> sends_;  // by peer
  std::map<int, std::deque<RecvTransfer>> recvs_;
  std::vector<Communicator::Impl::PointToPoint> to_self_;
  std::vector<Communicator::Impl::PointToPoint> from_self_;
  Status status_;
};

}  // namespace theseus
