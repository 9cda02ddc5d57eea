// Point-to-point: send, recv, and all-to-all with uneven splits, which is a send and a receive to and from everybody.
#include <cstring>

#include "runtime/device_batch.h"
#include "runtime/drive.h"
#include "runtime/impl.h"
#include "runtime/point_to_point.h"

namespace theseus {

SignatureTag transfer_tag(int rank, Collective collective, size_t count, DataType type, uint32_t request) {
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
  const SignatureTag tag = transfer_tag(impl_.self->rank(), Collective::SendRecv, operation.count, operation.type, 0);
  return operation.sends ? add_send(operation.peer, operation.data, operation.bytes, kPointToPointChannel, tag)
                         : add_recv(operation.peer, operation.data, operation.bytes, kPointToPointChannel, tag);
}

Status match_self(const std::vector<Communicator::Impl::PointToPoint>& sends,
                  const std::vector<Communicator::Impl::PointToPoint>& receives) {
  if (sends.size() != receives.size()) {
    return Status::usage("send and recv with the own rank must be in one group: " + std::to_string(sends.size()) +
                         " sends meet " + std::to_string(receives.size()) + " receives");
  }
  for (size_t i = 0; i < sends.size(); ++i) {
    if (sends[i].count == receives[i].count && sends[i].type == receives[i].type) continue;
    return Status::usage("mismatched calls: this rank sends itself " + std::to_string(sends[i].count) + " " +
                         name_of(sends[i].type) + " and receives " + std::to_string(receives[i].count) + " " +
                         name_of(receives[i].type));
  }
  return {};
}

Status PointToPointBatch::copy_to_self() {
  THESEUS_TRY(match_self(to_self_, from_self_));
  for (size_t i = 0; i < to_self_.size(); ++i) {
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
  if (device != nullptr) {
    DeviceBatch batch(*this);
    THESEUS_TRY(batch.add(operation));
    THESEUS_TRY(batch.make_ready());
    return batch.launch();
  }
  PointToPointBatch batch(*this);
  THESEUS_TRY(batch.add(operation));
  THESEUS_TRY(batch.copy_to_self());
  if (links == nullptr) return {};
  Status status = drive(*this, [&] { return batch.advance(); }, [&] { return batch.status(); });
  return status.ok() ? status : fail(status);
}

namespace {

// All that `rank` sends to and receives from others, the nearest first.
template <class Batch>
Status add_all_to_all(Batch& batch, const AllToAllVCall& call, int rank, int ranks, uint32_t request) {
  const size_t element = size_of(call.type);
  const auto* send = static_cast<const uint8_t*>(call.send);
  auto* recv = static_cast<uint8_t*>(call.recv);
  const auto tag = [&](size_t count) { return transfer_tag(rank, Collective::AllToAllV, count, call.type, request); };
  for (int distance = 1; distance < ranks; ++distance) {
    const int to = (rank + distance) % ranks;
    const int from = (rank + ranks - distance) % ranks;
    THESEUS_TRY(batch.add_send(to, send + call.send_offsets[to] * element, call.send_counts[to] * element,
                               kCollectiveChannel, tag(call.send_counts[to])));
    THESEUS_TRY(batch.add_recv(from, recv + call.recv_offsets[from] * element, call.recv_counts[from] * element,
                               kCollectiveChannel, tag(call.recv_counts[from])));
  }
  return {};
}

}  // namespace

Status Communicator::Impl::run_all_to_all_v(const AllToAllVCall& call) {
  THESEUS_TRY(usable());
  const int rank = self->rank();
  const int ranks = self->ranks();
  const size_t element = size_of(call.type);
  if (call.send_counts[rank] != call.recv_counts[rank]) {
    return Status::argument("all-to-all: this rank sends itself " + std::to_string(call.send_counts[rank]) +
                            " elements and receives " + std::to_string(call.recv_counts[rank]));
  }
  const auto id = static_cast<uint32_t>(next_request++);
  const auto* own_from = static_cast<const uint8_t*>(call.send) + call.send_offsets[rank] * element;
  auto* own_to = static_cast<uint8_t*>(call.recv) + call.recv_offsets[rank] * element;
  const size_t own_bytes = call.send_counts[rank] * element;
  if (device != nullptr) {
    DeviceBatch batch(*this);
    batch.add_stream(call.stream);
    THESEUS_TRY(add_all_to_all(batch, call, rank, ranks, id));
    if (own_bytes > 0) batch.add_copy(own_to, own_from, own_bytes);
    THESEUS_TRY(batch.make_ready());
    return batch.launch();
  }
  PointToPointBatch batch(*this);
  THESEUS_TRY(add_all_to_all(batch, call, rank, ranks, id));
  if (own_bytes > 0) std::memmove(own_to, own_from, own_bytes);
  if (links == nullptr) return {};
  Status status = drive(*this, [&] { return batch.advance(); }, [&] { return batch.status(); });
  return status.ok() ? status : fail(status);
}

}  // namespace theseus
