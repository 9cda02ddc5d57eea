// The emulator's two protocol machines: the requester (go-back-N) and the responder of a reliable connection.
#include <algorithm>
#include <utility>

#include "rdma/verbs/emu_pair.h"

namespace theseus {
namespace {

constexpr int kTriesOfNotReady = 7;  // rnr_retry = 7: for ever

bool takes_receive(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
bool is_send(ibv_wr_opcode opcode) { return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM; }
bool has_immediate(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
ibv_wc_opcode completed_as(ibv_wr_opcode opcode) {
  if (opcode == IBV_WR_RDMA_READ) return IBV_WC_RDMA_READ;
  return is_send(opcode) ? IBV_WC_SEND : IBV_WC_RDMA_WRITE;
}

}  // namespace

// Sends every packet from `psn` on of what is outstanding.
void EmulatedVerbs::send_from(Pair& self, uint32_t psn) {
  self.sent_class = self.attributes.ah_attr.grh.traffic_class;
  const auto peer = pairs_.find(self.attributes.dest_qp_num);
  if (peer == pairs_.end()) return;
  for (const Message& message : self.outstanding) {
    Packet packet{
        .source = self.qp.qp_num, .opcode = message.opcode, .length = message.length, .immediate = message.immediate};
    if (message.opcode == IBV_WR_RDMA_READ) {
      packet.psn = message.first;
      packet.packets = message.packets;
      packet.address = message.address;
      if (!message.answered && psn_distance(message.first + message.packets, psn) > 0) {
        peer->second->wire.push_back(packet);
      }
      continue;
    }
    for (uint32_t i = 0; i < message.packets; ++i) {
      packet.psn = (message.first + i) & kPsnMask;
      if (psn_distance(packet.psn, psn) < 0) continue;
      const size_t from = size_t{i} * self.mtu(), to = std::min<size_t>(message.length, from + self.mtu());
      packet.first = i == 0;
      packet.last = i + 1 == message.packets;
      packet.address = message.address + from;
      packet.data.assign(message.data.begin() + from, message.data.begin() + to);
      peer->second->wire.push_back(packet);
    }
  }
}

void EmulatedVerbs::answer(Pair& self, const Packet& packet, int kind, uint32_t psn) {
  const auto peer = pairs_.find(packet.source);
  if (peer == pairs_.end()) return;
  peer->second->wire.push_back({.source = self.qp.qp_num, .answer = kind, .psn = psn & kPsnMask});
  self.sent_class = self.attributes.ah_attr.grh.traffic_class;
}

void EmulatedVerbs::request_arrived(Pair& self, Packet& packet) {
  const int32_t ahead = psn_distance(packet.psn, self.expected_psn);
  if (ahead > 0) {  // said once, until the expected one comes
    if (!std::exchange(self.complained, true)) answer(self, packet, kNakSequence, self.expected_psn);
    return;
  }
  if (ahead < 0 && packet.opcode != IBV_WR_RDMA_READ) return answer(self, packet, kAck, self.expected_psn - 1);
  if (ahead == 0 &&
      packet.first == self.inside) {  // the first packet of a message inside another, or the other way round
    return answer(self, packet, kNakInvalid, packet.psn);
  }
  self.complained = false;
  std::deque<Receive>& posted = self.qp.srq == nullptr ? self.posted : srqs_.at(self.qp.srq)->posted;
  const bool needs_receive = is_send(packet.opcode) ? packet.first : packet.last && takes_receive(packet.opcode);
  if (ahead == 0 && needs_receive && posted.empty()) {
    self.complained = true;
    return answer(self, packet, kNakNotReady, packet.psn);
  }
  execute(self, packet);
}

void EmulatedVerbs::execute(Pair& self, Packet& packet) {
  if (packet.opcode == IBV_WR_RDMA_READ) {
    if (packet.psn == self.expected_psn) self.expected_psn = (self.expected_psn + packet.packets) & kPsnMask;
    const auto* const start = reinterpret_cast<const char*>(packet.address);
    Packet response{.source = self.qp.qp_num, .answer = kReadResponse, .psn = packet.psn};
    response.data.assign(start, start + packet.length);
    response.packets = packet.packets;
    if (const auto peer = pairs_.find(packet.source); peer != pairs_.end()) peer->second->wire.push_back(response);
    return;
  }
  self.expected_psn = (self.expected_psn + 1) & kPsnMask;
  self.inside = !packet.last;
  if (is_send(packet.opcode)) {
    self.partial.insert(self.partial.end(), packet.data.begin(), packet.data.end());
  } else if (!packet.data.empty()) {
    std::memcpy(reinterpret_cast<void*>(packet.address), packet.data.data(), packet.data.size());
  }
  answer(self, packet, kAck, packet.psn);
  if (!packet.last || !takes_receive(packet.opcode)) return;
  std::deque<Receive>& posted = self.qp.srq == nullptr ? self.posted : srqs_.at(self.qp.srq)->posted;
  const Receive receive = std::move(posted.front());
  posted.pop_front();
  ibv_wc completion{};
  completion.wr_id = receive.id;
  completion.qp_num = self.qp.qp_num;
  completion.byte_len = packet.length;
  completion.opcode = is_send(packet.opcode) ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
  if (has_immediate(packet.opcode)) {
    completion.imm_data = packet.immediate;
    completion.wc_flags = IBV_WC_WITH_IMM;
  }
  if (is_send(packet.opcode) && !scatter(std::exchange(self.partial, {}), receive.pieces)) {
    completion.status = IBV_WC_LOC_LEN_ERR;
  }
  complete(self.qp.recv_cq, completion);
}

void EmulatedVerbs::answer_arrived(Pair& self, const Packet& packet) {
  if (psn_distance(packet.psn, self.next_psn) >= 0) return;  // of nothing sent by this incarnation
  switch (packet.answer) {
    case kAck: return acknowledge(self, packet.psn);
    case kNakInvalid: return fail(self, IBV_WC_REM_INV_REQ_ERR);
    case kNakSequence:
      if (psn_distance(packet.psn, self.acknowledged) < 0) return;
      acknowledge(self, packet.psn - 1);
      if (self.tries++ >= self.attributes.retry_cnt) return fail(self, IBV_WC_RETRY_EXC_ERR);
      return send_from(self, self.acknowledged);  // or from a READ before it whose response was lost
    case kNakNotReady:
      acknowledge(self, packet.psn - 1);
      if (self.attributes.rnr_retry != kTriesOfNotReady && self.not_ready++ >= self.attributes.rnr_retry) {
        return fail(self, IBV_WC_RNR_RETRY_EXC_ERR);
      }
      self.tries = 0;
      self.waited = kTimeoutTicks / 2;  // tried again by the timer, sooner than a loss
      return;
    case kReadResponse:
      for (Message& message : self.outstanding) {
        if (message.opcode != IBV_WR_RDMA_READ || message.answered) continue;
        if (message.first != packet.psn) return;  // an earlier response was lost: both are asked for again
        scatter(packet.data, message.pieces);
        message.answered = true;
        return acknowledge(self, packet.psn + packet.packets - 1);
      }
      return;
    default: return;
  }
}

void EmulatedVerbs::acknowledge(Pair& self, uint32_t psn) {
  psn &= kPsnMask;
  if (psn_distance(psn, self.acknowledged) < 0) return;
  if (psn_distance(psn + 1, self.acknowledged) > 0) self.waited = self.tries = self.not_ready = 0;
  while (!self.outstanding.empty()) {
    Message& message = self.outstanding.front();
    const uint32_t last = (message.first + message.packets - 1) & kPsnMask;
    // An acknowledgement beyond a READ without its data means that the response was lost: the READ is tried again.
    const bool missing = message.opcode == IBV_WR_RDMA_READ && !message.answered;
    if (missing || psn_distance(last, psn) > 0) {
      if (!missing && psn_distance(psn + 1, self.acknowledged) > 0) self.acknowledged = (psn + 1) & kPsnMask;
      return;
    }
    self.acknowledged = (last + 1) & kPsnMask;
    if (message.signalled) {
      ibv_wc completion{};
      completion.wr_id = message.id;
      completion.qp_num = self.qp.qp_num;
      completion.opcode = completed_as(message.opcode);
      completing_slots_ = message.slots;
      complete(self.qp.send_cq, completion);
    }
    self.outstanding.pop_front();
  }
}

void EmulatedVerbs::fail(Pair& self, ibv_wc_status status) {
  self.state = self.qp.state = IBV_QPS_ERR;
  if (!self.outstanding.empty()) {
    ibv_wc completion{};
    completion.wr_id = self.outstanding.front().id;
    completion.status = status;
    completion.qp_num = self.qp.qp_num;
    completing_slots_ = 1;
    complete(self.qp.send_cq, completion);
    self.outstanding.pop_front();
  }
  flush(self);
}

void EmulatedVerbs::flush(Pair& self) {
  ibv_wc completion{};
  completion.status = IBV_WC_WR_FLUSH_ERR;
  completion.qp_num = self.qp.qp_num;
  for (const Message& message : std::exchange(self.outstanding, {})) {
    completion.wr_id = message.id;
    completing_slots_ = 1;
    complete(self.qp.send_cq, completion);
  }
  completion.opcode = IBV_WC_RECV;
  for (const Receive& receive : std::exchange(self.posted, {})) {
    completion.wr_id = receive.id;
    complete(self.qp.recv_cq, completion);
  }
}

}  // namespace theseus
