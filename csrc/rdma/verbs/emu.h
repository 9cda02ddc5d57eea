// Reliable connections without hardware, for tests: queue pairs of one process over wires that deliver a packet when
// told. Kept as the InfiniBand specification has them: attributes per transition, packet sequence numbers checked at
// the receiver, go-back-N with a bounded number of tries, receiver-not-ready, a traffic class frozen while the pair is
// connected, completions of a pair dropped when it is reset. Memory keys are not checked; the responses of a READ
// travel as one packet.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "rdma/verbs/api.h"

namespace theseus {

class EmulatedVerbs final : public Verbs {
 public:
  EmulatedVerbs();
  ~EmulatedVerbs() override;
  EmulatedVerbs(const EmulatedVerbs&) = delete;
  EmulatedVerbs& operator=(const EmulatedVerbs&) = delete;

  ibv_cq* create_cq(int entries);
  ibv_srq* create_srq();
  ibv_qp* create_qp(ibv_cq* send_cq, ibv_cq* recv_cq, uint32_t sends, uint32_t receives, bool all_signalled,
                    ibv_srq* srq = nullptr);
  int post_srq_recv(ibv_srq* srq, ibv_recv_wr* request);
  void destroy_qp(ibv_qp* qp);

  int post_send(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad) override;
  int post_recv(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr** bad) override;
  int poll_cq(ibv_cq* cq, int count, ibv_wc* completions) override;
  int modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) override;
  int query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) override;
  int set_ece(ibv_qp* qp, ibv_ece* options) override;

  // Delivers the oldest packet under way to `qp`; false: none is.
  bool deliver(ibv_qp* qp);
  // Loses it instead.
  bool lose(ibv_qp* qp);
  // One tick of every requester's timer; a try lasts `kTimeoutTicks`.
  void tick();
  // The traffic class of the last packet that `qp` sent.
  uint8_t sent_class(ibv_qp* qp) const;
  // A dead peer: packets to `qp` vanish from now on.
  void kill(ibv_qp* qp);
  // What a test must never see: a completion that found its queue full.
  bool overflowed() const { return overflowed_; }

  static constexpr int kTimeoutTicks = 64;

 private:
  struct Packet;
  struct Message;
  struct Receive;
  struct Pair;
  struct Srq;
  struct Queue;

  Pair& pair(ibv_qp* qp) const;
  void send_from(Pair& pair, uint32_t psn);
  void request_arrived(Pair& pair, Packet& packet);
  void execute(Pair& pair, Packet& packet);
  void answer(Pair& pair, const Packet& packet, int kind, uint32_t psn);
  void answer_arrived(Pair& pair, const Packet& packet);
  void acknowledge(Pair& pair, uint32_t psn);
  void complete(ibv_cq* cq, const ibv_wc& completion);
  void fail(Pair& pair, ibv_wc_status status);
  void flush(Pair& pair);
  void purge(const Pair& pair);

  std::map<uint32_t, std::unique_ptr<Pair>> pairs_;
  std::map<ibv_cq*, std::unique_ptr<Queue>> queues_;
  std::map<ibv_srq*, std::unique_ptr<Srq>> srqs_;
  uint32_t next_number_ = 17;
  uint32_t completing_slots_ = 0;  // of the send queue, given back when the next completion is polled
  bool overflowed_ = false;
};

}  // namespace theseus
