// The queue pairs of one device context, and the completions taken from its queues ahead of the application.
// Not thread-safe: the owner holds one lock around every call.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>

#include "rdma/queue_pair.h"
#include "rdma/verbs/api.h"

namespace theseus::rdma {

class Device {
 public:
  explicit Device(Verbs& verbs, const Config& config = {}, const Rules& rules = {})
      : verbs_(verbs), config_(config), rules_(rules) {}

  void add(ibv_qp* qp, uint32_t sends, bool all_signalled, int refusal = 0);
  void remove(ibv_qp* qp);
  void remove_queue(ibv_cq* cq) { taken_.erase(cq); }
  // Null: not one of ours.
  QueuePair* find(uint32_t number);
  const std::unordered_map<uint32_t, std::unique_ptr<QueuePair>>& pairs() const { return pairs_; }

  int post_send(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad);
  int post_recv(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr** bad);
  int poll_cq(ibv_cq* cq, int count, ibv_wc* completions);
  int modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask);
  int set_ece(ibv_qp* qp, ibv_ece* options);

  void request(uint32_t number, uint8_t traffic_class, int64_t now, Outputs& out);
  void receive(const Message& message, int64_t now);
  void advance(int64_t now, Outputs& out);

 private:
  // Takes `count` completions at most that are the application's.
  int poll(ibv_cq* cq, int count, ibv_wc* completions);
  void drain(ibv_cq* cq);
  void forget(const QueuePair& pair);

  Verbs& verbs_;
  const Config config_;
  const Rules rules_;
  std::unordered_map<uint32_t, std::unique_ptr<QueuePair>> pairs_;
  std::unordered_map<ibv_cq*, std::deque<ibv_wc>> taken_;
};

}  // namespace theseus::rdma
