// The verbs a queue pair's life needs, as an interface: the real libibverbs, or the emulator of the tests.
// The structures are those of <infiniband/verbs.h>; results are as there, 0 or an errno.
#pragma once

#include <infiniband/verbs.h>

namespace theseus {

class Verbs {
 public:
  virtual ~Verbs() = default;
  virtual int post_send(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad) = 0;
  virtual int post_recv(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr** bad) = 0;
  // The completions taken, or a negative number.
  virtual int poll_cq(ibv_cq* cq, int count, ibv_wc* completions) = 0;
  virtual int modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) = 0;
  virtual int query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) = 0;
  virtual int set_ece(ibv_qp* qp, ibv_ece* options) = 0;
};

}  // namespace theseus
