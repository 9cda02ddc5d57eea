#include "rdma/queue_pair.h"

#include <algorithm>
#include <cerrno>

#include "rdma/verbs/attributes.h"

namespace theseus::rdma {
namespace {

constexpr uint64_t kMarkerId = 0x7468657365757321;
constexpr uint32_t kPsnMask = 0xffffff;

}  // namespace

QueuePair::QueuePair(Verbs& verbs, ibv_qp* qp, uint32_t sends, bool all_signalled, int refusal, const Config& config,
                     const Rules& rules)
    : verbs_(verbs),
      qp_(qp),
      sends_(sends),
      all_signalled_(all_signalled),
      refusal_(refusal),
      config_(config),
      rules_(rules) {}

int QueuePair::send(ibv_send_wr& request, bool marker) {
  ibv_send_wr* const next = request.next;
  request.next = nullptr;
  ibv_send_wr* bad = nullptr;
  const int error = verbs_.post_send(qp_, &request, &bad);
  request.next = next;
  if (error == 0 && !failed_) {
    sent_.push_back({all_signalled_ || (request.send_flags & IBV_SEND_SIGNALED) != 0, marker});
  }
  return error;
}

size_t QueuePair::outstanding() const {
  return std::count_if(sent_.begin(), sent_.end(), [](const Sent& each) { return !each.marker; });
}

int QueuePair::post_send(ibv_send_wr* request, ibv_send_wr** bad) {
  // Held ones that found no room stay first in line.
  for (; request != nullptr; request = request->next) {
    int error = 0;
    if (holding() || !held_.empty()) {
      if (outstanding() + held_.size() >= sends_) {
        error = ENOMEM;
      } else {
        held_.emplace_back(*request);
      }
    } else {
      error = send(*request, false);
    }
    if (error == 0) continue;
    *bad = request;
    return error;
  }
  return 0;
}

int QueuePair::post_recv(ibv_recv_wr* request, ibv_recv_wr** bad) {
  for (; request != nullptr; request = request->next) {
    ibv_recv_wr single = *request;
    single.next = nullptr;
    ibv_recv_wr* ignored = nullptr;
    if (const int error = verbs_.post_recv(qp_, &single, &ignored); error != 0) {
      *bad = request;
      return error;
    }
    if (!failed_) receives_.emplace_back(single);
  }
  return 0;
}

bool QueuePair::completed(const ibv_wc& completion) {
  if (completion.status != IBV_WC_SUCCESS) {
    // The pair is in error: everything still posted comes back flushed, and nothing is left to account for.
    failed_ = true;
    sent_.clear();
    receives_.clear();
    return completion.wr_id != kMarkerId;
  }
  if ((completion.opcode & IBV_WC_RECV) != 0) {
    if (qp_->srq == nullptr && !receives_.empty()) receives_.pop_front();
    return true;
  }
  // One completion stands for its own request and all before it.
  while (!sent_.empty()) {
    const Sent sent = sent_.front();
    sent_.pop_front();
    if (sent.signalled) return !sent.marker;
  }
  return true;
}

int QueuePair::modify(ibv_qp_attr* attributes, int mask) {
  ibv_qp_attr asked = *attributes;
  const bool addressed = (mask & IBV_QP_AV) != 0;
  if (addressed && wanted_.has_value() && refusal_ == 0 && asked.ah_attr.is_global != 0) {
    asked.ah_attr.grh.traffic_class = *wanted_;
  }
  const int error = verbs_.modify_qp(qp_, &asked, mask);
  if (error != 0) return error;
  if ((mask & IBV_QP_STATE) != 0 && asked.qp_state == IBV_QPS_RESET) {
    saved_ = {};
    saved_mask_ = 0;
    ece_.reset();
    sent_.clear();
    held_.clear();  // as RESET does with what is posted
    receives_.clear();
    failed_ = granted_ = false;
    granted_number_ = answered_number_ = 0;
    deadline_ = 0;  // a change under way is given up
    return 0;
  }
  copy_attributes(saved_, asked, mask);
  saved_mask_ |= mask;
  if ((mask & IBV_QP_STATE) != 0 && asked.qp_state == IBV_QPS_ERR) {
    failed_ = true;
    deadline_ = 0;
    sent_.clear();
    receives_.clear();
    release();
  }
  return 0;
}

int QueuePair::set_ece(ibv_ece* options) {
  const int error = verbs_.set_ece(qp_, options);
  if (error == 0) ece_ = *options;
  return error;
}

int QueuePair::refusal() const {
  if (refusal_ != 0) return refusal_;
  if (failed_) return ENOTCONN;
  constexpr int kUnsupported = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE | IBV_QP_QKEY | IBV_QP_RATE_LIMIT;
  if (qp_->qp_type != IBV_QPT_RC || (saved_mask_ & kUnsupported) != 0) return EOPNOTSUPP;
  return connected() && saved_.ah_attr.is_global == 0 ? EOPNOTSUPP : 0;
}

void QueuePair::request(uint8_t traffic_class, int64_t now, Outputs& out) {
  wanted_ = traffic_class;
  if (const int error = refusal(); error != 0) return finish(error, out);
  if (!connected()) return;  // modify() puts it into the address vector
  if (phase_ == Phase::kSteady) {
    if (traffic_class == this->traffic_class()) return finish(0, out);
    phase_ = Phase::kDraining;
  }
  deadline_ = now + config_.change_ns;
}

void QueuePair::receive(const Message& message, int64_t now) {
  if (message.from != saved_.dest_qp_num || !connected() || failed_) return;
  const auto newer = [](uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) > 0; };
  switch (message.kind) {
    case Message::kHold:
      if (refusal() != 0 || (granted_number_ != 0 && !newer(message.number, granted_number_))) return;
      granted_ = true;
      granted_number_ = message.number;
      granted_until_ = now + config_.lease_ns;
      return;
    case Message::kRelease:
      if (granted_ && !newer(granted_number_, message.number)) granted_ = false;
      return;
    case Message::kHeld:
      if (phase_ == Phase::kAsking && message.number - first_number_ < asked_.size()) peer_held_ = message;
      return;
    default: return;
  }
}

void QueuePair::mark_end() {
  if (!rules_.drain || sent_.empty() || sent_.back().signalled || failed_) return;
  // Nothing is written: a length of zero needs no key and leaves no completion at the peer.
  ibv_send_wr marker{};
  marker.wr_id = kMarkerId;
  marker.opcode = IBV_WR_RDMA_WRITE;
  marker.send_flags = IBV_SEND_SIGNALED;
  (void)send(marker, true);  // no room now: tried again at the next step
}

void QueuePair::release() {
  while (!held_.empty()) {
    if (send(held_.front().request(), false) != 0) return;  // no room: the next step goes on
    held_.pop_front();
  }
}

void QueuePair::finish(int error, Outputs& out) {
  if (phase_ == Phase::kAsking && !asked_.empty()) {
    out.messages.push_back({.kind = Message::kRelease, .from = qp_->qp_num, .to = peer(), .number = number_});
  }
  phase_ = Phase::kSteady;
  asked_.clear();
  peer_held_.reset();
  out.marked.push_back({qp_->qp_num, traffic_class(), error});
}

void QueuePair::grant(Outputs& out) {
  if (!drained() || answered_number_ == granted_number_) return;
  ibv_qp_attr now{};
  if (verbs_.query_qp(qp_, &now, IBV_QP_SQ_PSN | IBV_QP_RQ_PSN) != 0) return;
  answered_number_ = granted_number_;
  out.messages.push_back(
      {Message::kHeld, qp_->qp_num, peer(), granted_number_, now.sq_psn & kPsnMask, now.rq_psn & kPsnMask});
}

void QueuePair::ask(int64_t now, Outputs& out) {
  if (!asked_.empty() && now - asked_.back() < config_.ask_again_ns) return;
  out.messages.push_back({.kind = Message::kHold, .from = qp_->qp_num, .to = peer(), .number = ++number_});
  if (asked_.empty()) first_number_ = number_;
  asked_.push_back(now);
}

void QueuePair::advance(int64_t now, Outputs& out) {
  if (granted_ && (now >= granted_until_ || failed_)) granted_ = false;
  if (polling()) mark_end();
  if (granted_) grant(out);
  if (phase_ != Phase::kSteady) {
    if (failed_) {
      finish(ENOTCONN, out);
    } else if (now >= deadline_) {
      finish(ETIMEDOUT, out);
    }
  }
  if (phase_ == Phase::kDraining && drained()) phase_ = Phase::kAsking;
  if (phase_ == Phase::kAsking) {
    ibv_qp_attr numbers{};
    if (!config_.ask_peer) {
      const int error = verbs_.query_qp(qp_, &numbers, IBV_QP_SQ_PSN | IBV_QP_RQ_PSN);
      finish(error != 0 ? error : rebuild(numbers), out);
    } else if (!peer_held_.has_value()) {
      ask(now, out);
    } else if (now - asked_[peer_held_->number - first_number_] > config_.lease_ns - config_.rebuild_ns) {
      peer_held_.reset();  // too old: the lease could end under our hands
      ask(now, out);
    } else if (const int error = verbs_.query_qp(qp_, &numbers, IBV_QP_SQ_PSN | IBV_QP_RQ_PSN); error != 0) {
      finish(error, out);
    } else if ((numbers.sq_psn & kPsnMask) != peer_held_->rq_psn || (numbers.rq_psn & kPsnMask) != peer_held_->sq_psn) {
      finish(EPROTO, out);  // a device that does not tell its live numbers, or a peer that is not held
    } else {
      finish(rebuild(numbers), out);
    }
  }
  if (!holding()) release();
}

int QueuePair::repost() {
  if (!rules_.repost_receives) return 0;
  for (ReceiveCopy& receive : receives_) {
    ibv_recv_wr request = receive.request();
    ibv_recv_wr* bad = nullptr;
    if (const int error = verbs_.post_recv(qp_, &request, &bad); error != 0) return error;
  }
  return 0;
}

int QueuePair::connect(const ibv_qp_attr& numbers, uint8_t traffic_class) {
  ibv_qp_attr next = saved_;
  next.ah_attr.grh.traffic_class = traffic_class;
  if (rules_.restore_psn) {
    next.sq_psn = numbers.sq_psn & kPsnMask;
    next.rq_psn = numbers.rq_psn & kPsnMask;
  }
  const auto step = [&](ibv_qp_state state, int mask) {
    next.qp_state = state;
    return verbs_.modify_qp(qp_, &next, mask | IBV_QP_STATE);
  };
  int error = step(IBV_QPS_RESET, 0);
  if (error == 0) error = step(IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error == 0 && ece_.has_value()) error = verbs_.set_ece(qp_, &*ece_);
  if (error == 0) error = repost();  // before RTR, so that the peer never finds none
  if (error == 0) {
    error = step(IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  }
  if (error == 0) {
    error = step(IBV_QPS_RTS,
                 IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  }
  if (error == 0) saved_.ah_attr.grh.traffic_class = traffic_class;
  return error;
}

int QueuePair::rebuild(const ibv_qp_attr& numbers) {
  ++rebuilt_;
  sent_.clear();
  const int error = connect(numbers, *wanted_);
  if (error == 0 || connect(numbers, traffic_class()) == 0) return error;
  // Neither way leads back. In ERR whatever is posted comes back flushed, so the application learns of it.
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  (void)verbs_.modify_qp(qp_, &attributes, IBV_QP_STATE);
  failed_ = true;
  return error;
}

}  // namespace theseus::rdma
