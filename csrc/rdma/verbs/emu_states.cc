// The emulator's state machine of a queue pair: which attributes a transition needs and takes (IB
// specification 11.2.5.2).
#include <cerrno>

#include "rdma/verbs/attributes.h"
#include "rdma/verbs/emu_pair.h"

namespace theseus {
namespace {

struct Transition {
  ibv_qp_state from, to;
  int needed, allowed;
};

constexpr int kInit = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kReceive =
    IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kSend = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
constexpr int kLater = IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER;
constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, kInit, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, kInit},
    {IBV_QPS_INIT, IBV_QPS_RTR, kReceive, IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS, kSend, kLater},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, kLater},
};

bool allowed(ibv_qp_state from, ibv_qp_state to, int mask) {
  mask &= ~(IBV_QP_STATE | IBV_QP_CUR_STATE);
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return mask == 0;
  for (const Transition& each : kTransitions) {
    if (each.from != from || each.to != to) continue;
    return (mask & each.needed) == each.needed && (mask & ~(each.needed | each.allowed)) == 0;
  }
  return false;
}

}  // namespace

int EmulatedVerbs::modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  Pair& self = pair(qp);
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attributes->qp_state : self.state;
  if (!allowed(self.state, to, mask)) return EINVAL;
  copy_attributes(self.attributes, *attributes, mask);
  if ((mask & IBV_QP_RQ_PSN) != 0) self.expected_psn = attributes->rq_psn & kPsnMask;
  if ((mask & IBV_QP_SQ_PSN) != 0) self.next_psn = self.acknowledged = attributes->sq_psn & kPsnMask;
  self.state = qp->state = to;
  if (to == IBV_QPS_ERR) flush(self);
  if (to != IBV_QPS_RESET) return 0;
  purge(self);
  self.attributes = {};
  self.outstanding.clear();
  self.posted.clear();
  self.partial.clear();
  self.inside = self.complained = false;
  self.occupied = self.unsignalled = self.next_psn = self.acknowledged = self.expected_psn = 0;
  self.waited = self.tries = self.not_ready = 0;
  return 0;
}

int EmulatedVerbs::query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int /*mask*/) {
  const Pair& self = pair(qp);
  *attributes = self.attributes;
  attributes->qp_state = attributes->cur_qp_state = self.state;
  attributes->rq_psn = self.expected_psn;
  attributes->sq_psn = self.next_psn;
  return 0;
}

int EmulatedVerbs::set_ece(ibv_qp* qp, ibv_ece* /*options*/) { return pair(qp).state == IBV_QPS_INIT ? 0 : EINVAL; }

}  // namespace theseus
