#include "rdma/device.h"

#include <cerrno>

namespace theseus::rdma {

void Device::add(ibv_qp* qp, uint32_t sends, bool all_signalled, int refusal) {
  pairs_[qp->qp_num] = std::make_unique<QueuePair>(verbs_, qp, sends, all_signalled, refusal, config_, rules_);
}

QueuePair* Device::find(uint32_t number) {
  const auto found = pairs_.find(number);
  return found == pairs_.end() ? nullptr : found->second.get();
}

void Device::forget(const QueuePair& pair) {
  for (ibv_cq* cq : {pair.qp()->send_cq, pair.qp()->recv_cq}) {
    if (const auto taken = taken_.find(cq); taken != taken_.end()) {
      std::erase_if(taken->second, [&](const ibv_wc& each) { return each.qp_num == pair.qp()->qp_num; });
    }
  }
}

void Device::remove(ibv_qp* qp) {
  QueuePair* const pair = find(qp->qp_num);
  if (pair == nullptr) return;
  forget(*pair);
  pairs_.erase(qp->qp_num);
}

int Device::post_send(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad) {
  QueuePair* const pair = find(qp->qp_num);
  return pair == nullptr ? verbs_.post_send(qp, request, bad) : pair->post_send(request, bad);
}

int Device::post_recv(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr** bad) {
  QueuePair* const pair = find(qp->qp_num);
  return pair == nullptr ? verbs_.post_recv(qp, request, bad) : pair->post_recv(request, bad);
}

int Device::modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  QueuePair* const pair = find(qp->qp_num);
  if (pair == nullptr) return verbs_.modify_qp(qp, attributes, mask);
  const int error = pair->modify(attributes, mask);
  if (error == 0 && (mask & IBV_QP_STATE) != 0 && attributes->qp_state == IBV_QPS_RESET) forget(*pair);
  return error;
}

int Device::set_ece(ibv_qp* qp, ibv_ece* options) {
  QueuePair* const pair = find(qp->qp_num);
  return pair == nullptr ? verbs_.set_ece(qp, options) : pair->set_ece(options);
}

int Device::poll(ibv_cq* cq, int count, ibv_wc* completions) {
  int kept = 0;
  while (kept < count) {
    const int wanted = count - kept;
    ibv_wc* const next = completions + kept;
    const int got = verbs_.poll_cq(cq, wanted, next);
    if (got < 0) return kept > 0 ? kept : got;
    for (int i = 0; i < got; ++i) {
      QueuePair* const pair = find(next[i].qp_num);
      if (pair == nullptr || pair->completed(next[i])) completions[kept++] = next[i];
    }
    if (got < wanted) break;
  }
  return kept;
}

int Device::poll_cq(ibv_cq* cq, int count, ibv_wc* completions) {
  int done = 0;
  if (const auto taken = taken_.find(cq); taken != taken_.end()) {
    std::deque<ibv_wc>& queue = taken->second;
    for (; done < count && !queue.empty(); ++done) {
      completions[done] = queue.front();
      queue.pop_front();
    }
  }
  if (done == count) return done;
  const int more = poll(cq, count - done, completions + done);
  return more >= 0 ? done + more : (done > 0 ? done : more);
}

void Device::drain(ibv_cq* cq) {
  constexpr int kAtOnce = 32;
  ibv_wc completions[kAtOnce];
  std::deque<ibv_wc>& queue = taken_[cq];
  for (int got = kAtOnce; got == kAtOnce;) {
    got = poll(cq, kAtOnce, completions);
    for (int i = 0; i < got; ++i) queue.push_back(completions[i]);
  }
}

void Device::request(uint32_t number, uint8_t traffic_class, int64_t now, Outputs& out) {
  if (QueuePair* const pair = find(number); pair != nullptr) {
    pair->request(traffic_class, now, out);
  } else {
    out.marked.push_back({number, 0, ENOENT});
  }
}

void Device::receive(const Message& message, int64_t now) {
  if (QueuePair* const pair = find(message.to); pair != nullptr) pair->receive(message, now);
}

void Device::advance(int64_t now, Outputs& out) {
  for (auto& [number, pair] : pairs_) {
    if (pair->polling() && rules_.empty_completions) {
      drain(pair->qp()->send_cq);
      if (pair->qp()->recv_cq != pair->qp()->send_cq) drain(pair->qp()->recv_cq);
    }
    pair->advance(now, out);
  }
}

}  // namespace theseus::rdma
