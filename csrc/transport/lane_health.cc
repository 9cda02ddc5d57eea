#include <algorithm>
#include <utility>

#include "transport/tcp_aid.h"

namespace theseus {
namespace {

constexpr uint64_t kWindowNs = 20'000'000;  // of backlogged time, for one rate
constexpr uint64_t kHeldUpNs = 15'000'000;  // for so long it counts that the receiver has held us up
// What passes sooner than in this time is not worth helping, and rates are then those of the scheduler, not of NICs.
constexpr double kWorthHelpingSeconds = 0.005;
// Below these parts of the best other lane's rate. Connections to several peers share a NIC no more evenly than that,
// and plans made for a sick NIC leave one below about 0.2 out, and load others by what they carry.
constexpr double kBad = 0.2;
constexpr double kSlow = 0.4;

}  // namespace

void LaneHealth::measure(uint64_t now, uint64_t acknowledged, uint64_t arrived, uint64_t under_way, uint64_t held_up_ns,
                         bool backlogged) {
  const uint64_t moved = acknowledged - acknowledged_;
  const uint64_t span = started_ ? now - measured_at_ns_ : 0;
  // It is said rarely, and then for the spans before as well.
  if (held_up_ns > held_up_ns_) held_up_at_ns_ = now;
  not_counted_ns_ += held_up_ns - held_up_ns_;
  const uint64_t held_up = std::min(span, not_counted_ns_);
  not_counted_ns_ -= held_up;
  if (backlogged_) {
    window_ns_ += span - held_up;
    window_bytes_ += moved;
  }
  const bool any = moved > 0 || arrived != arrived_;
  const bool by_receiver = held_up_at_ns_ != 0 && now < held_up_at_ns_ + kHeldUpNs;
  // Where nothing was under way before, what is now has only just begun.
  if (any || under_way == 0 || under_way_ == 0 || by_receiver || !started_) moved_at_ns_ = now;
  if (any) heard_at_ns_ = now;
  under_way_ = under_way;
  started_ = true;
  measured_at_ns_ = now;
  acknowledged_ = acknowledged;
  arrived_ = arrived;
  held_up_ns_ = held_up_ns;
  backlogged_ = backlogged;
  if (window_ns_ < kWindowNs) return;
  rate_ = static_cast<double>(window_bytes_) * 1e9 / static_cast<double>(window_ns_);
  window_ns_ = window_bytes_ = 0;
  rated_at_ns_ = now;
  fresh_ = true;
}

// Of three windows in a row the best one counts, so that pauses of this process change nothing.
LaneHealth::State LaneHealth::compare(double best_other) {
  if (!fresh_ || best_other <= 0) return state_;
  fresh_ = false;
  const double part = rate_ / best_other;
  State vote = part < kBad ? State::Bad : part < kSlow ? State::Slow : State::Good;
  if (static_cast<double>(under_way_) < kWorthHelpingSeconds * rate_) vote = State::Good;
  const State best = std::min({vote, votes_[0], votes_[1]});
  votes_[0] = std::exchange(votes_[1], vote);
  return best;
}

void LaneHealth::set_state(State state) {
  state_ = state;
  votes_[0] = votes_[1] = State::Good;
  window_ns_ = window_bytes_ = 0;
  fresh_ = false;
}

}  // namespace theseus
