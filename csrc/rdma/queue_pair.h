// One queue pair whose traffic class can be changed while it is connected: "QP resurrection" (LEVELLER, section 5).
//
// Verbs fix the address vector, so the traffic class, once a pair is ready to receive. A change takes the pair through
// RESET, INIT, RTR and RTS with the attributes it had. For nothing to be lost or doubled:
//  1. Posts are held back (copied, in order) until all that was posted is acknowledged.
//  2. The peer, which is not reset, does the same for as long as a lease. Otherwise a packet accepted between our
//  reading the
//     sequence numbers and RESET would be acknowledged and then expected again, and a message cut in the middle could
//     not go on: either breaks the connection. Now both directions are silent and each sequence number stands still.
//  3. Both ends' numbers are compared: what we will send next is what the peer expects next, and the reverse. They are
//  given
//     back at RTR (rq_psn) and RTS (sq_psn), so the peer sees no gap: for it nothing happened.
//  4. Both completion queues are emptied before RESET, which drops what they hold of this pair.
//  5. Receives posted and not consumed are posted again at INIT, from copies. Those of a shared queue survive by
//  themselves.
// Either end can change at any time, both at once too. What cannot be done in time is undone: held posts go out, in
// order.
//
// A state machine: time is given, no lock is taken; the owner (Device) serialises. Calls into Verbs are its only
// effects.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "rdma/message.h"
#include "rdma/requests.h"
#include "rdma/verbs/api.h"

namespace theseus::rdma {

struct Config {
  int64_t change_ns = 500'000'000;   // from the request until it is given up
  int64_t lease_ns = 200'000'000;    // how long a peer holds for us, unless released
  int64_t rebuild_ns = 50'000'000;   // what of the lease must be left to begin RESET
  int64_t ask_again_ns = 2'000'000;  // between two kHold: they may be lost
  bool ask_peer = true;              // false: only where the peer is known to send nothing to this end
};

// Each can be switched off by a test, which must then fail.
struct Rules {
  bool hold_posts = true;
  bool drain = true;
  bool restore_psn = true;
  bool empty_completions = true;
  bool repost_receives = true;
};

struct Outputs {
  std::vector<Message> messages;
  std::vector<Marked> marked;
};

class QueuePair {
 public:
  // `sends`: how many the application may have outstanding; the pair has room for one more. `refusal`: 0, or why (an
  // errno) this pair's class can never be changed.
  QueuePair(Verbs& verbs, ibv_qp* qp, uint32_t sends, bool all_signalled, int refusal, const Config& config,
            const Rules& rules);

  // The application's calls; results as the verbs'.
  int post_send(ibv_send_wr* request, ibv_send_wr** bad);
  int post_recv(ibv_recv_wr* request, ibv_recv_wr** bad);
  int modify(ibv_qp_attr* attributes, int mask);
  int set_ece(ibv_ece* options);
  // A completion of this pair was polled. False: it is of a request of ours, and not the application's to see.
  bool completed(const ibv_wc& completion);

  void request(uint8_t traffic_class, int64_t now, Outputs& out);
  void receive(const Message& message, int64_t now);
  // True: the completion queues must be polled for this pair, since something waits for its completions.
  bool polling() const { return phase_ != Phase::kSteady || granted_; }
  // Does what can be done. The queues were polled dry just before, under the same lock.
  void advance(int64_t now, Outputs& out);

  ibv_qp* qp() const { return qp_; }
  uint8_t traffic_class() const { return saved_.ah_attr.grh.traffic_class; }
  const ibv_ah_attr& address() const { return saved_.ah_attr; }
  uint32_t peer() const { return saved_.dest_qp_num; }
  bool connected() const { return saved_.qp_state == IBV_QPS_RTS; }
  size_t held() const { return held_.size(); }
  uint64_t rebuilt() const { return rebuilt_; }

 private:
  enum class Phase { kSteady, kDraining, kAsking };
  struct Sent {
    bool signalled, marker;
  };

  bool holding() const { return rules_.hold_posts && polling(); }
  size_t outstanding() const;  // of the application's sends
  int send(ibv_send_wr& request, bool marker);
  // Sees that the last request sent has a completion, since only that tells when it is acknowledged.
  void mark_end();
  bool drained() const { return sent_.empty() || !rules_.drain; }
  void release();
  void finish(int error, Outputs& out);
  int refusal() const;
  void grant(Outputs& out);
  void ask(int64_t now, Outputs& out);
  int rebuild(const ibv_qp_attr& numbers);
  int connect(const ibv_qp_attr& numbers, uint8_t traffic_class);
  int repost();

  Verbs& verbs_;
  ibv_qp* const qp_;
  const uint32_t sends_;
  const bool all_signalled_;
  const int refusal_;
  const Config config_;
  const Rules rules_;

  ibv_qp_attr saved_{};
  int saved_mask_ = 0;
  std::optional<ibv_ece> ece_;
  std::deque<Sent> sent_;
  std::deque<SendCopy> held_;
  std::deque<ReceiveCopy> receives_;
  bool failed_ = false;
  uint64_t rebuilt_ = 0;

  // Our own change.
  Phase phase_ = Phase::kSteady;
  std::optional<uint8_t> wanted_;
  int64_t deadline_ = 0;
  uint32_t number_ = 0, first_number_ = 1;  // of the last kHold, and of the first of this change
  std::vector<int64_t> asked_;              // when, by number - first_number_
  std::optional<Message> peer_held_;

  // The peer's.
  bool granted_ = false;
  uint32_t granted_number_ = 0, answered_number_ = 0;
  int64_t granted_until_ = 0;
};

}  // namespace theseus::rdma
