// Point-to-point: send, recv, and all-to-all with uneven splits, which is a send and a receive to and from everybody.
#include <cstring>
#include <list>

#include "runtime/drive.h"
#include "runtime/impl.h"
#include "runtime/point_to_point.h"

namespace theseus {
namespace {

constexpr int kCollectiveChannel = 0;
constexpr int kPointToPointChannel = 1;

SignatureTag tag_for(int rank, Collective collective, size_t count, DataType type, uint32_t request) {
  SignatureTag tag;
  tag.signature.rank = static_cast<int16_t>(rank);
  tag.signature.collective = collective;
  tag.signature.count = count;
  tag.signature.type = type;
  tag.signature.request = request;
  tag.base = base_hash(tag.signature);
  tag.hash = request_hash(tag.base, request);
  return tag;
}

}  // namespace

Result<std::vector<SendPort*>> PointToPointBatch::send_ports(int peer, int channel) {
  std::vector<SendPort*> ports;
  for (int rail = 0; rail < impl_.links->rails_to(peer); ++rail) {
    Result<SendPort*> port = impl_.links->send_port(peer, rail, channel);
    if (!port.ok()) return port.status();
    ports.push_back(*port);
  }
  return ports;
}

Result<std::vector<RecvPort*>> PointToPointBatch::recv_ports(int peer, int channel) {
  std::vector<RecvPort*> ports;
  for (int rail = 0; rail < impl_.links->rails_to(peer); ++rail) {
    Result<RecvPort*> port = impl_.links->recv_port(peer, rail, channel);
    if (!port.ok()) return port.status();
    ports.push_back(*port);
  }
  return ports;
}

Status PointToPointBatch::add_send(int peer, const void* data, size_t bytes, int channel, const SignatureTag& tag) {
  Result<std::vector<SendPort*>> ports = send_ports(peer, channel);
  if (!ports.ok()) return ports.status();
  sends_[peer].emplace_back(std::move(*ports), data, bytes, impl_.links->slot_bytes(), tag);
  return {};
}

Status PointToPointBatch::add_recv(int peer, void* data, size_t bytes, int channel, const SignatureTag& tag) {
  Result<std::vector<RecvPort*>> ports = recv_ports(peer, channel);
  if (!ports.ok()) return ports.status();
  recvs_[peer].emplace_back(std::move(*ports), data, bytes, impl_.links->slot_bytes(), tag);
  return {};
}

Status PointToPointBatch::add(const Communicator::Impl::PointToPoint& operation) {
  if (operation.peer == impl_.self->rank()) {
    auto& own = operation.sends ? to_self_ : from_self_;
    own.push_back(operation);
    return {};
  }
  const SignatureTag tag = tag_for(impl_.self->rank(), Collective::SendRecv, operation.count, operation.type, 0);
  return operation.sends ? add_send(operation.peer, operation.data, operation.bytes, kPointToPointChannel, tag)
                         : add_recv(operation.peer, operation.data, operation.bytes, kPointToPointChannel, tag);
}

// Sends to oneself meet receives from oneself in order; inside one batch, since nobody else could post the other half.
Status PointToPointBatch::copy_to_self() {
  if (to_self_.size() != from_self_.size()) {
    return Status::usage("send and recv with the own rank must be in one group: " + std::to_string(to_self_.size()) +
                         " sends meet " + std::to_string(from_self_.size()) + " receives");
  }
  for (size_t i = 0; i < to_self_.size(); ++i) {
    if (to_self_[i].count != from_self_[i].count || to_self_[i].type != from_self_[i].type) {
      return Status::usage("mismatched calls: this rank sends itself " + std::to_string(to_self_[i].count) + " " +
                           name_of(to_self_[i].type) + " and receives " + std::to_string(from_self_[i].count) + " " +
                           name_of(from_self_[i].type));
    }
    if (to_self_[i].bytes > 0) std::memmove(from_self_[i].data, to_self_[i].data, to_self_[i].bytes);
  }
  to_self_.clear();
  from_self_.clear();
  return {};
}

Advance PointToPointBatch::advance() {
  bool progressed = false;
  bool open = false;
  for (auto& [peer, queue] : sends_) {
    while (!queue.empty()) {
      const Advance state = queue.front().advance();
      progressed |= state != Advance::Blocked;
      if (state != Advance::Done) break;
      queue.pop_front();
    }
    open |= !queue.empty();
  }
  for (auto& [peer, queue] : recvs_) {
    while (!queue.empty()) {
      const Advance state = queue.front().advance();
      progressed |= state != Advance::Blocked;
      if (state == Advance::Failed) {
        status_ = queue.front().status();
        return Advance::Failed;
      }
      if (state != Advance::Done) break;
      queue.pop_front();
    }
    open |= !queue.empty();
  }
  if (!open) return Advance::Done;
  return progressed ? Advance::Progressed : Advance::Blocked;
}

Status Communicator::Impl::run_point_to_point(const PointToPoint& operation) {
  THESEUS_TRY(usable());
  THESEUS_TRY(refuse_on_device("send and recv"));
  PointToPointBatch batch(*this);
  THESEUS_TRY(batch.add(operation));
  THESEUS_TRY(batch.copy_to_self());
  if (links == nullptr) return {};
  Status status = drive(*this, [&] { return batch.advance(); }, [&] { return batch.status(); });
  return status.ok() ? status : fail(status);
}

// Their transfers are no plans, so that there is no kernel for them.
Status Communicator::Impl::refuse_on_device(const char* what) const {
  if (device == nullptr) return {};
  return Status::usage(std::string(what) +
                       " do not run on GPU memory yet: use a collective, or THESEUS_DEVICE=host with host memory");
}

Status Communicator::Impl::run_all_to_all_v(const AllToAllVCall& call) {
  THESEUS_TRY(usable());
  THESEUS_TRY(refuse_on_device("all-to-all with uneven splits"));
  const int rank = self->rank();
  const int ranks = self->ranks();
  const size_t element = size_of(call.type);
  if (call.send_counts[rank] != call.recv_counts[rank]) {
    return Status::argument("all-to-all: this rank sends itself " + std::to_string(call.send_counts[rank]) +
                            " elements and receives " + std::to_string(call.recv_counts[rank]));
  }
  const uint32_t id = next_request++;
  const auto* send = static_cast<const uint8_t*>(call.send);
  auto* recv = static_cast<uint8_t*>(call.recv);
  PointToPointBatch batch(*this);
  for (int distance = 1; distance < ranks; ++distance) {
    const int to = (rank + distance) % ranks;
    const int from = (rank + ranks - distance) % ranks;
    THESEUS_TRY(batch.add_send(to, send + call.send_offsets[to] * element, call.send_counts[to] * element,
                               kCollectiveChannel,
                               tag_for(rank, Collective::AllToAllV, call.send_counts[to], call.type, id)));
    THESEUS_TRY(batch.add_recv(from, recv + call.recv_offsets[from] * element, call.recv_counts[from] * element,
                               kCollectiveChannel,
                               tag_for(rank, Collective::AllToAllV, call.recv_counts[from], call.type, id)));
  }
  if (call.send_counts[rank] > 0) {
    std::memmove(recv + call.recv_offsets[rank] * element, send + call.send_offsets[rank] * element,
                 call.send_counts[rank] * element);
  }
  if (links == nullptr) return {};
  Status status = drive(*this, [&] { return batch.advance(); }, [&] { return batch.status(); });
  return status.ok() ? status : fail(status);
}

}  // namespace theseus
