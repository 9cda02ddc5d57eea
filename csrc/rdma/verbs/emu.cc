#include "rdma/verbs/emu.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "rdma/verbs/emu_pair.h"

namespace theseus {

EmulatedVerbs::EmulatedVerbs() = default;
EmulatedVerbs::~EmulatedVerbs() = default;

ibv_cq* EmulatedVerbs::create_cq(int entries) {
  auto queue = std::make_unique<Queue>();
  queue->cq.cqe = entries;
  ibv_cq* const handle = &queue->cq;
  queues_[handle] = std::move(queue);
  return handle;
}

ibv_srq* EmulatedVerbs::create_srq() {
  auto srq = std::make_unique<Srq>();
  ibv_srq* const handle = &srq->srq;
  srqs_[handle] = std::move(srq);
  return handle;
}

ibv_qp* EmulatedVerbs::create_qp(ibv_cq* send_cq, ibv_cq* recv_cq, uint32_t sends, uint32_t receives,
                                 bool all_signalled, ibv_srq* srq) {
  auto pair = std::make_unique<Pair>();
  pair->qp.qp_num = next_number_++;
  pair->qp.qp_type = IBV_QPT_RC;
  pair->qp.send_cq = send_cq;
  pair->qp.recv_cq = recv_cq;
  pair->qp.srq = srq;
  pair->sends = sends;
  pair->receives = receives;
  pair->all_signalled = all_signalled;
  ibv_qp* const handle = &pair->qp;
  pairs_[handle->qp_num] = std::move(pair);
  return handle;
}

void EmulatedVerbs::destroy_qp(ibv_qp* qp) { pairs_.erase(qp->qp_num); }

EmulatedVerbs::Pair& EmulatedVerbs::pair(ibv_qp* qp) const { return *pairs_.at(qp->qp_num); }

int EmulatedVerbs::post_srq_recv(ibv_srq* srq, ibv_recv_wr* request) {
  for (; request != nullptr; request = request->next) srqs_.at(srq)->posted.push_back(Receive::of(*request));
  return 0;
}

int EmulatedVerbs::post_recv(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr** bad) {
  Pair& self = pair(qp);
  for (; request != nullptr; request = request->next) {
    const bool full = self.posted.size() >= self.receives;
    if (full || self.state == IBV_QPS_RESET || qp->srq != nullptr) {
      *bad = request;
      return full ? ENOMEM : EINVAL;
    }
    self.posted.push_back(Receive::of(*request));
    if (self.state == IBV_QPS_ERR) flush(self);
  }
  return 0;
}

int EmulatedVerbs::post_send(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad) {
  Pair& self = pair(qp);
  for (; request != nullptr; request = request->next) {
    const bool full = self.occupied >= self.sends;
    if (full || (self.state != IBV_QPS_RTS && self.state != IBV_QPS_ERR)) {
      *bad = request;
      return full ? ENOMEM : EINVAL;
    }
    ++self.occupied;
    ++self.unsignalled;
    Message message = Message::of(*request);
    message.signalled = self.all_signalled || (request->send_flags & IBV_SEND_SIGNALED) != 0;
    if (message.signalled) message.slots = std::exchange(self.unsignalled, 0);
    const uint32_t packets = std::max<uint32_t>(1, (message.length + self.mtu() - 1) / self.mtu());
    message.first = self.next_psn;
    message.packets = packets;
    self.next_psn = (self.next_psn + packets) & kPsnMask;
    const uint32_t first = message.first;
    self.outstanding.push_back(std::move(message));
    if (self.state == IBV_QPS_ERR) {
      flush(self);
    } else {
      if (self.outstanding.size() == 1) self.waited = 0;
      send_from(self, first);
    }
  }
  return 0;
}

int EmulatedVerbs::poll_cq(ibv_cq* cq, int count, ibv_wc* completions) {
  Queue& queue = *queues_.at(cq);
  int taken = 0;
  for (; taken < count && !queue.entries.empty(); ++taken) {
    const auto& [completion, slots] = queue.entries.front();
    completions[taken] = completion;
    const auto owner = pairs_.find(completion.qp_num);
    if (owner != pairs_.end()) owner->second->occupied -= std::min(owner->second->occupied, slots);
    queue.entries.pop_front();
  }
  return taken;
}

void EmulatedVerbs::complete(ibv_cq* cq, const ibv_wc& completion) {
  Queue& queue = *queues_.at(cq);
  if (queue.entries.size() >= static_cast<size_t>(cq->cqe)) overflowed_ = true;
  queue.entries.emplace_back(completion, completing_slots_);
  completing_slots_ = 0;
}

void EmulatedVerbs::purge(const Pair& pair) {
  for (ibv_cq* cq : {pair.qp.send_cq, pair.qp.recv_cq}) {
    std::erase_if(queues_.at(cq)->entries, [&](const auto& entry) { return entry.first.qp_num == pair.qp.qp_num; });
  }
}

bool EmulatedVerbs::lose(ibv_qp* qp) {
  Pair& self = pair(qp);
  if (self.wire.empty()) return false;
  self.wire.pop_front();
  return true;
}

bool EmulatedVerbs::deliver(ibv_qp* qp) {
  Pair& self = pair(qp);
  if (self.wire.empty()) return false;
  Packet packet = std::move(self.wire.front());
  self.wire.pop_front();
  if (self.dead || packet.source != self.attributes.dest_qp_num) return true;
  if (self.state != IBV_QPS_RTR && self.state != IBV_QPS_RTS) return true;
  if (packet.answer != kRequest) {
    if (self.state == IBV_QPS_RTS) answer_arrived(self, packet);
  } else {
    request_arrived(self, packet);
  }
  return true;
}

void EmulatedVerbs::kill(ibv_qp* qp) { pair(qp).dead = true; }
uint8_t EmulatedVerbs::sent_class(ibv_qp* qp) const { return pair(qp).sent_class; }

void EmulatedVerbs::tick() {
  for (auto& [number, pair] : pairs_) {
    if (pair->state != IBV_QPS_RTS || pair->outstanding.empty() || ++pair->waited < kTimeoutTicks) continue;
    pair->waited = 0;
    if (pair->tries++ >= pair->attributes.retry_cnt) {
      fail(*pair, IBV_WC_RETRY_EXC_ERR);
    } else {
      send_from(*pair, pair->acknowledged);
    }
  }
}

}  // namespace theseus
