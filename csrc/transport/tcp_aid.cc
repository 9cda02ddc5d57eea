#include "transport/tcp_aid.h"

#include <poll.h>

#include <algorithm>

#include "base/clock.h"
#include "base/env.h"

namespace theseus {
namespace {

// How often lanes are judged: not more often than this, and rarer where there are many connections.
constexpr uint64_t kJudgeNs = 2'000'000;
constexpr uint64_t kJudgePerPortNs = 20'000;
// A lane stands still when nothing was acknowledged for this long, and for several times what the others take for a
// piece of this size. Longer than a delayed acknowledgement (40 ms).
constexpr uint64_t kStandstillNs = 50'000'000;
constexpr double kPieceBytes = 64 << 10;
// Who helps a slow lane has shown what it can within this time: a plan may have left an idle rail out for a reason.
constexpr uint64_t kRateAgeNs = 1'000'000'000;
constexpr double kStandstillFactor = 4;
// A trial message, which may have to share its NIC, has to do about as well as what is not avoided. Between trials that
// fail, or lanes that fail again soon after one, the gap doubles.
constexpr double kTrialPart = 0.25;
constexpr uint64_t kSoonNs = 5'000'000'000;
constexpr uint64_t kTrialSlackNs = 6'000'000;  // a judgement comes late
constexpr uint64_t kArmedNs = 20'000'000;      // for a connection's next message, before another one's turn
constexpr uint64_t kFirstTrialGapNs = 250'000'000;
constexpr uint64_t kLongestTrialGapNs = 4'000'000'000;
// A lane that was not needed for so long is as good as new: what was known of it is old.
constexpr uint64_t kForgottenNs = 3'000'000'000;

uint64_t standstill_limit_ns(double best_other) {
  if (best_other <= 0) return kStandstillNs;
  const double piece_ns = kStandstillFactor * kPieceBytes * 1e9 / best_other;
  return std::max(kStandstillNs, static_cast<uint64_t>(std::min(piece_ns, 1e10)));
}

}  // namespace

TcpAid::Peer& TcpAid::peer_of(int peer) {
  Peer& found = peers_[peer];
  if (found.lanes.empty()) found.lanes = std::vector<Lane>(static_cast<size_t>(links_.rails_to(peer)));
  return found;
}

TcpAid::Lane& TcpAid::lane_of(int peer, int rail) { return peer_of(peer).lanes[static_cast<size_t>(rail)]; }

// Spare connections open with the first connection to a peer, over its rail and the next: to open one over a rail that
// fails already would be too late.
void TcpAid::add_sender(TcpSendPort* port) {
  const int peer = port->route().peer;
  Lane& lane = lane_of(peer, port->route().rail);
  const int rails = static_cast<int>(peer_of(peer).lanes.size());
  lane.ports.push_back(port);
  ++ports_;
  for (const int rail : {port->route().rail, (port->route().rail + 1) % rails}) {
    Lane& other = lane_of(peer, rail);
    if (rails > 1 && other.spare == nullptr) other.spare = links_.open_spare(peer, rail);
  }
  if (lane.health.state() == LaneHealth::State::Bad) {
    port->hold_back(true);
    port->flow().suspect.fetch_add(1, std::memory_order_relaxed);
  }
}

void TcpAid::tend(uint64_t now) {
  if (now >= judge_at_ns_) {
    judge_at_ns_ = now + std::max(kJudgeNs, kJudgePerPortNs * ports_);
    active_ = false;
    for (auto& [number, peer] : peers_) {
      judge(peer, now);
      active_ |= peer.active;
    }
  }
  if (!active_) return;
  for (auto& [number, peer] : peers_) {
    if (!peer.active) continue;
    for (bool more = true; more;) {
      more = rescue(peer, now);
      move(peer, now);
    }
  }
}

double TcpAid::best_other(const Peer& peer, const Lane& lane) {
  double best = 0;
  for (const Lane& other : peer.lanes) {
    if (&other != &lane) best = std::max(best, other.health.rate());
  }
  return best;
}

// Of lanes that are little used, buckets let bursts through that no trial can match, so the worst one counts.
double TcpAid::worst_trusted(const Peer& peer, const Lane& lane) {
  double worst = 0;
  for (const Lane& other : peer.lanes) {
    const double rate = other.health.rate();
    if (&other == &lane || rate <= 0 || other.health.state() != LaneHealth::State::Good) continue;
    worst = worst > 0 ? std::min(worst, rate) : rate;
  }
  return worst > 0 ? worst : best_other(peer, lane);
}

bool TcpAid::has_other(const Peer& peer, const Lane& lane) {
  return std::any_of(peer.lanes.begin(), peer.lanes.end(), [&lane](const Lane& other) {
    return &other != &lane && other.spare != nullptr && other.spare->alive();
  });
}

bool TcpAid::way_around(int peer, int rail) const {
  const auto found = peers_.find(peer);
  return found != peers_.end() && has_other(found->second, found->second.lanes[static_cast<size_t>(rail)]);
}

bool TcpAid::heard_elsewhere(const Peer& peer, const Lane& lane, uint64_t now) {
  const auto silence = static_cast<uint64_t>(settings::heartbeat_timeout() * 1e9);
  return std::any_of(peer.lanes.begin(), peer.lanes.end(), [&](const Lane& other) {
    return &other != &lane && other.health.heard_at_ns() != 0 && now < other.health.heard_at_ns() + silence;
  });
}

bool TcpAid::hears(int peer, int rail, uint64_t now) const {
  const auto found = peers_.find(peer);
  return found != peers_.end() && heard_elsewhere(found->second, found->second.lanes[static_cast<size_t>(rail)], now);
}

void TcpAid::judge(Peer& peer, uint64_t now) {
  for (Lane& lane : peer.lanes) measure(lane, now);
  for (Lane& lane : peer.lanes) decide(peer, lane, now);
  peer.active = busy(peer);
}

void TcpAid::measure(Lane& lane, uint64_t now) {
  uint64_t acknowledged = 0, arrived = 0, under_way = 0, held_up_ns = 0;
  bool backlogged = false;
  for (TcpSendPort* port : lane.ports) {
    if (port->unsettled()) port->sample(now);
    acknowledged += port->meter().acknowledged();
    arrived += port->bytes_arrived();
    under_way += port->bytes_under_way();
    held_up_ns += port->held_up_ns();
    backlogged |= port->meter().backlogged();
  }
  if (lane.spare != nullptr) {
    acknowledged += lane.spare->acknowledged();
    arrived += lane.spare->bytes_arrived();
    under_way += lane.spare->under_way();
  }
  lane.health.measure(now, acknowledged, arrived, under_way, held_up_ns, backlogged);
}

void TcpAid::decide(Peer& peer, Lane& lane, uint64_t now) {
  using State = LaneHealth::State;
  if (lane.ports.empty() && lane.spare == nullptr) return;
  const double best = best_other(peer, lane);
  if (!has_other(peer, lane)) {
    if (lane.health.state() != State::Good) trust(lane);
    return;
  }
  const uint64_t limit = standstill_limit_ns(best);
  if (lane.health.state() == State::Bad) {
    // Where all were avoided it may have been given messages of others, in vain.
    if (lane.health.standstill_ns(now) > limit && lane.spare != nullptr) lane.spare->put_back();
    return try_again(lane, worst_trusted(peer, lane), now);
  }
  if (std::any_of(lane.ports.begin(), lane.ports.end(), [](const TcpSendPort* port) { return port->lost(); })) {
    return avoid(lane, now);
  }
  if (lane.health.standstill_ns(now) > limit) {
    // It may be the peer that does not read: then the others come to a halt as well. One message tells.
    const uint64_t since = lane.health.moved_at_ns() + limit / 2;
    for (const Lane& other : peer.lanes) {
      if (&other != &lane && other.health.heard_at_ns() > since) return avoid(lane, now);
    }
    if (now < lane.probe_at_ns) return;
    lane.probe_at_ns = now + limit;
    return probe(peer, lane, now);
  }
  for (TcpSendPort* port : lane.ports) {
    if (lane.health.rate() > 0) port->fit_buffer(lane.health.rate());
  }
  const State advice = lane.health.compare(best);
  if (advice == State::Bad) return avoid(lane, now);
  if (advice != lane.health.state()) lane.health.set_state(advice);
}

// Sends the oldest message of a lane that stands still another way, and again by yet another while it does not arrive.
// Where only the spare connection has something, the lane holds up others.
void TcpAid::probe(Peer& peer, Lane& lane, uint64_t now) {
  if (lane.probe_port != nullptr) lane.probe_port->put_back(lane.probe_sequence);
  lane.probe_port = nullptr;
  for (TcpSendPort* port : lane.ports) {
    const std::optional<uint64_t> sequence = port->neglected(TcpSendPort::Which::All);
    if (!sequence.has_value()) continue;
    SpareSender* const spare = choose_spare(peer, lane, false, now);
    if (spare == nullptr || !spare->load(*port, *sequence)) return;
    lane.probe_port = port;
    lane.probe_sequence = *sequence;
    return;
  }
  avoid(lane, now);
}

void TcpAid::avoid(Lane& lane, uint64_t now) {
  lane.health.set_state(LaneHealth::State::Bad);
  lane.trial = Lane::Trial::None;
  const bool again = lane.trial_gap_ns != 0 && now < lane.trusted_at_ns + kSoonNs;
  lane.trial_gap_ns = again ? std::min(2 * lane.trial_gap_ns, kLongestTrialGapNs) : kFirstTrialGapNs;
  lane.trial_at_ns = again ? now + lane.trial_gap_ns : now;
  lane.needed_at_ns = now;
  for (TcpSendPort* port : lane.ports) {
    port->hold_back(true);
    port->flow().suspect.fetch_add(1, std::memory_order_relaxed);
  }
  if (lane.spare != nullptr) lane.spare->put_back();
}

void TcpAid::trust(Lane& lane) {
  const bool held = lane.health.state() == LaneHealth::State::Bad;
  lane.health.set_state(LaneHealth::State::Good);
  lane.trial = Lane::Trial::None;
  for (TcpSendPort* port : lane.ports) {
    if (!held) break;
    port->hold_back(false);
    port->flow().suspect.fetch_sub(1, std::memory_order_relaxed);
  }
}

// A lane that is avoided gets one message once it has drained, which other lanes carry as well.
void TcpAid::try_again(Lane& lane, double usual, uint64_t now) {
  const bool forgotten = now >= lane.needed_at_ns + kForgottenNs;
  bool drained = lane.spare == nullptr || lane.spare->under_way() == 0;
  for (const TcpSendPort* port : lane.ports) {
    if (port->lost()) return;
    drained &= !port->under_way();
    if (port->unsettled() && !forgotten) lane.needed_at_ns = now;
  }
  if (forgotten && drained) return trust(lane);
  if (lane.trial == Lane::Trial::Armed && lane.trial_port->meter().handed() == lane.trial_from) {
    // Connections of plans that nobody runs any more send nothing.
    if (lane.trial_port->pending() || now < lane.trial_at_ns + kArmedNs) return;
    lane.trial_port->hold_back(true);
    lane.trial = Lane::Trial::None;
  } else if (lane.trial == Lane::Trial::Armed) {
    lane.trial = Lane::Trial::Running;
    lane.trial_at_ns = now;
  }
  if (!drained) return;
  if (lane.trial == Lane::Trial::Running) {
    const auto bytes = static_cast<double>(lane.trial_port->meter().handed() - lane.trial_from);
    const double allowed_ns = usual > 0 ? bytes * 1e9 / (kTrialPart * usual) : 1e18;
    if (static_cast<double>(now - lane.trial_at_ns) <= allowed_ns + kTrialSlackNs) {
      lane.trusted_at_ns = now;
      return trust(lane);
    }
    lane.trial = Lane::Trial::None;
    lane.trial_at_ns = now + lane.trial_gap_ns;
    lane.trial_gap_ns = std::min(2 * lane.trial_gap_ns, kLongestTrialGapNs);
  } else if (lane.trial == Lane::Trial::None && now >= lane.trial_at_ns && !lane.ports.empty()) {
    lane.trial = Lane::Trial::Armed;
    lane.trial_at_ns = now;
    lane.trial_port = lane.ports[lane.next_port++ % lane.ports.size()];
    lane.trial_from = lane.trial_port->meter().handed();
    lane.trial_port->hold_back(true, 1);
  }
}

// Whether rescue() or move() may have anything to do.
bool TcpAid::busy(const Peer& peer) const {
  for (const Lane& lane : peer.lanes) {
    if (lane.spare != nullptr && (lane.spare->busy() || lane.spare->under_way() > 0)) return true;
    for (const TcpSendPort* port : lane.ports) {
      if (!port->unsettled()) continue;
      if (links_.pacing != nullptr) return true;  // receipts come in
      if (lane.health.state() != LaneHealth::State::Good || port->lost()) return true;
      if (port->neglected(TcpSendPort::Which::Orphaned).has_value()) return true;
    }
  }
  return false;
}

// Loads each spare connection that has nothing to do with one message; false where there was no such message.
bool TcpAid::rescue(Peer& peer, uint64_t now) {
  bool loaded = false;
  using State = LaneHealth::State;
  using Which = TcpSendPort::Which;
  for (Lane& lane : peer.lanes) {
    const State state = lane.health.state();
    const Which which = state == State::Bad ? Which::All : state == State::Slow ? Which::Waiting : Which::Orphaned;
    const size_t count = lane.ports.size();
    for (size_t i = 0; i < count; ++i) {
      TcpSendPort& port = *lane.ports[(lane.next_port + i) % count];
      while (port.unsettled() && load_one(peer, lane, port, which, state == State::Slow, now)) loaded = true;
      // The receiver may have made room, and its word been lost with the rail that it came over.
      if (state != State::Bad || !port.pending() || !port.window_full()) continue;
      if (now < peer.asked_at_ns + kStandstillNs || port.neglected(which).has_value()) continue;
      SpareSender* spare = choose_spare(peer, lane, false, now);
      if (spare == nullptr) continue;
      peer.asked_at_ns = now;
      spare->ask(port);
    }
    if (count > 0) lane.next_port = (lane.next_port + 1) % count;
  }
  return loaded;
}

bool TcpAid::load_one(Peer& peer, Lane& lane, TcpSendPort& port, TcpSendPort::Which which, bool only_idle,
                      uint64_t now) {
  const std::optional<uint64_t> sequence = port.neglected(which);
  if (!sequence.has_value()) return false;
  SpareSender* const spare = choose_spare(peer, lane, only_idle, now);
  return spare != nullptr && spare->load(port, *sequence);
}

// An idle one if there is one, else they take turns. One that is avoided as well will do where there is nothing better.
SpareSender* TcpAid::choose_spare(Peer& peer, const Lane& lane, bool only_idle, uint64_t now) {
  using State = LaneHealth::State;
  const auto usable = [&](const Lane& other) {
    return &other != &lane && other.spare != nullptr && other.spare->alive();
  };
  const bool any_trusted = std::any_of(peer.lanes.begin(), peer.lanes.end(), [&](const Lane& other) {
    return usable(other) && other.health.state() != State::Bad;
  });
  const size_t count = peer.lanes.size();
  size_t chosen = count;
  for (size_t i = 0; i < count; ++i) {
    const size_t rail = (peer.next_lane + i) % count;
    const Lane& other = peer.lanes[rail];
    if (!usable(other) || !other.spare->ready()) continue;
    if (only_idle && now > other.health.rated_at_ns() + kRateAgeNs) continue;
    if (other.health.state() == State::Bad && (any_trusted || other.health.heard_at_ns() + kStandstillNs < now)) {
      continue;
    }
    if (idle(rail)) {
      chosen = rail;
      break;
    }
    if (chosen == count && !only_idle) chosen = rail;
  }
  if (chosen == count) return nullptr;
  peer.next_lane = (chosen + 1) % count;
  return peer.lanes[chosen].spare.get();
}

bool TcpAid::idle(size_t rail) const {
  for (const auto& [number, peer] : peers_) {
    if (rail >= peer.lanes.size()) continue;
    for (const TcpSendPort* port : peer.lanes[rail].ports) {
      if (port->pending()) return false;
    }
  }
  return true;
}

void TcpAid::move(Peer& peer, uint64_t now) {
  for (Lane& carrier : peer.lanes) {
    if (carrier.spare == nullptr) continue;
    carrier.spare->progress(now, heard_elsewhere(peer, carrier, now), [&](const TcpReceipt& receipt) {
      if (receipt.rail >= peer.lanes.size()) return;
      carrier.health.hear(now);
      for (TcpSendPort* port : peer.lanes[receipt.rail].ports) {
        if (port->route().channel == receipt.channel) port->heard(receipt);
      }
    });
  }
}

bool TcpAid::unsettled() const {
  return std::any_of(peers_.begin(), peers_.end(), [this](const auto& each) { return busy(each.second); });
}

void TcpAid::visit_waits(uint64_t now, const std::function<void(int, short, uint64_t)>& add) const {
  for (const auto& [number, peer] : peers_) {
    for (const Lane& lane : peer.lanes) {
      if (lane.spare == nullptr || !peer.active) continue;
      add(lane.spare->wait_fd(now), POLLOUT, lane.spare->wait_until_ns());
      if (lane.spare->read_fd() >= 0) add(lane.spare->read_fd(), POLLIN, 0);
    }
    for (const auto& receiver : peer.receivers) add(receiver->wait_fd(now), POLLIN, receiver->wait_until_ns());
  }
}

}  // namespace theseus
