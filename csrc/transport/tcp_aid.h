// First aid: what a sick or dead rail holds goes over another one, beneath the plan.
//
// A lane is what leads to one peer over one rail: the connections of the plan, and a spare one that is opened while the
// rail is healthy. Lanes are compared with the other lanes to the same peer, by what the peer's kernel acknowledges
// while data waits. A lane that stands still for longer than a few round trips while another moves is avoided: its
// connections get nothing new, and whatever is not acknowledged goes out again over the others' spare connections. One
// that is slower than the others gets help from those that are idle. Receivers take each message once, in order,
// whichever way it comes (TcpRecvPort), and say over the spare connection how far they are, which bounds what may
// overtake them. A lane comes back when it has drained, and a trial message goes over it fast enough, or
// when nothing was to go over it for seconds.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/result.h"
#include "transport/tcp_port.h"
#include "transport/tcp_recv_port.h"
#include "transport/tcp_spare.h"

namespace theseus {

// How one lane fares. A pure machine: the clock and what the kernel says come in.
class LaneHealth {
 public:
  enum class State { Good, Slow, Bad };

  // `acknowledged`, `arrived`: bytes so far; `under_way`: bytes that the peer lacks; `held_up_ns`: time so far in which
  // the receiver held up what waits; `backlogged`: data waits for the socket.
  void measure(uint64_t now, uint64_t acknowledged, uint64_t arrived, uint64_t under_way, uint64_t held_up_ns,
               bool backlogged);
  // The state that a comparison with the best of the other lanes suggests (bytes per second; 0: not known).
  State compare(double best_other);
  State state() const { return state_; }
  void set_state(State state);
  // Nothing was acknowledged for this long though something should be.
  uint64_t standstill_ns(uint64_t now) const { return now - moved_at_ns_; }
  uint64_t moved_at_ns() const { return moved_at_ns_; }
  uint64_t heard_at_ns() const { return heard_at_ns_; }
  void hear(uint64_t now) { heard_at_ns_ = now; }
  double rate() const { return rate_; }
  uint64_t rated_at_ns() const { return rated_at_ns_; }

 private:
  State state_ = State::Good;
  bool started_ = false;
  bool backlogged_ = false;
  uint64_t measured_at_ns_ = 0;
  uint64_t moved_at_ns_ = 0;
  uint64_t heard_at_ns_ = 0;
  uint64_t acknowledged_ = 0;
  uint64_t arrived_ = 0;
  uint64_t under_way_ = 0;
  uint64_t held_up_ns_ = 0;
  uint64_t held_up_at_ns_ = 0;
  uint64_t not_counted_ns_ = 0;
  uint64_t window_ns_ = 0;
  uint64_t window_bytes_ = 0;
  bool fresh_ = false;  // a window closed since the last comparison
  double rate_ = 0;
  uint64_t rated_at_ns_ = 0;
  State votes_[2] = {State::Good, State::Good};  // of the windows before
};

class TcpAid {
 public:
  // What it needs of the links that it is part of.
  struct Links {
    std::function<int(int peer)> rails_to;
    std::function<std::unique_ptr<SpareSender>(int peer, int rail)> open_spare;  // null: impossible
    std::function<TcpRecvPort*(int peer, int rail, int channel)> receiver;       // null: there cannot be one
    std::shared_ptr<TcpInbox> inbox;
    size_t slot_bytes = 0;
    Pacing* pacing = nullptr;
  };
  explicit TcpAid(Links links) : links_(std::move(links)) {}

  void add_sender(TcpSendPort* port);
  void add_receiver(TcpRecvPort* port);

  // The sending half: judges, rescues, moves. For whoever holds the links, the watch thread included.
  void tend(uint64_t now);
  // The receiving half.
  Status receive(uint64_t now);
  // A port of this lane that lost its connection may go on.
  bool way_around(int peer, int rail) const;
  // The peer gave a sign of life over another rail than this one, not longer ago than it may be silent.
  bool hears(int peer, int rail, uint64_t now) const;
  // Something is under way that nobody may be waiting for.
  bool unsettled() const;
  // When tend() wants to be called next, whatever happens.
  uint64_t due_ns() const { return judge_at_ns_; }
  // The user leaves: the peers hear how far it came.
  void say_all();
  // The next receive() reads all, without regard to how recently it did.
  void expect() { receive_at_ns_ = 0; }
  // Calls add(fd, events, until) for what to wait for.
  void visit_waits(uint64_t now, const std::function<void(int, short, uint64_t)>& add) const;

 private:
  struct Lane {
    std::vector<TcpSendPort*> ports;
    std::unique_ptr<SpareSender> spare;
    LaneHealth health;
    uint64_t probe_at_ns = 0;           // when one message may be sent another way, to find out who is at fault
    TcpSendPort* probe_port = nullptr;  // whose message was
    uint64_t probe_sequence = 0;
    enum class Trial { None, Armed, Running } trial = Trial::None;
    TcpSendPort* trial_port = nullptr;
    uint64_t trial_from = 0;   // bytes handed over before
    uint64_t trial_at_ns = 0;  // when the next may be, or this one began
    uint64_t trial_gap_ns = 0;
    uint64_t trusted_at_ns = 0;  // after a trial
    uint64_t needed_at_ns = 0;   // while it is avoided: when something was to go over it
    size_t next_port = 0;
  };
  struct Aided {
    SpareReceiver* by = nullptr;  // alive, if any is
    uint64_t highest = 0;         // message that came another way
    TcpReceipt said;
    bool owed = false;  // what it asked for could not be said yet
  };
  struct Peer {
    std::vector<Lane> lanes;
    std::vector<std::unique_ptr<SpareReceiver>> receivers;
    std::vector<TcpRecvPort*> recv_ports;
    uint64_t expect_until_ns = 0;  // spare connections of the peer may still be on their way
    std::map<TcpRecvPort*, Aided> aided;
    size_t next_lane = 0;
    uint64_t asked_at_ns = 0;
    bool active = false;
  };

  Peer& peer_of(int peer);
  Lane& lane_of(int peer, int rail);
  void judge(Peer& peer, uint64_t now);
  void measure(Lane& lane, uint64_t now);
  void decide(Peer& peer, Lane& lane, uint64_t now);
  void probe(Peer& peer, Lane& lane, uint64_t now);
  void avoid(Lane& lane, uint64_t now);
  void trust(Lane& lane);
  void try_again(Lane& lane, double usual, uint64_t now);
  bool rescue(Peer& peer, uint64_t now);
  void move(Peer& peer, uint64_t now);
  bool load_one(Peer& peer, Lane& lane, TcpSendPort& port, TcpSendPort::Which which, bool only_idle, uint64_t now);
  SpareSender* choose_spare(Peer& peer, const Lane& lane, bool only_idle, uint64_t now);
  bool idle(size_t rail) const;
  static double best_other(const Peer& peer, const Lane& lane);
  static double worst_trusted(const Peer& peer, const Lane& lane);
  static bool heard_elsewhere(const Peer& peer, const Lane& lane, uint64_t now);
  static bool has_other(const Peer& peer, const Lane& lane);
  bool busy(const Peer& peer) const;
  void take_spares(int number, Peer& peer);
  Status deliver(int number, Peer& peer, SpareReceiver& receiver, TcpSlot message);
  void say_receipts(Peer& peer, bool all);
  void update_ways(Peer& peer);

  Links links_;
  std::map<int, Peer> peers_;
  size_t ports_ = 0;
  uint64_t judge_at_ns_ = 0;
  uint64_t receive_at_ns_ = 0;
  uint64_t inbox_seen_ = 0;
  bool unsaid_ = false;  // a receipt found no room
  bool active_ = false;
};

}  // namespace theseus
