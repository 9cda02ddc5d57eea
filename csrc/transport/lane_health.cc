#include <algorithm>
#include <utility>

#include "transport/tcp_aid.h"

namespace theseus {
namespace {

constexpr uint64_t kWindowNs = 20'000'000;  // of backlogged time, for one rate
// Below these parts of the best other lane's rate. Plans made for a sick NIC leave one below about 0.2 out, and load
// others by what they carry.
constexpr double kBad = 0.2;
constexpr double kSlow = 0.7;

}  // namespace

void LaneHealth::measure(uint64_t now, uint64_t acknowledged, uint64_t arrived, uint64_t under_way, uint64_t held_up_ns,
                         bool backlogged) {
  const uint64_t moved = acknowledged - acknowledged_;
  const uint64_t held_up = held_up_ns - held_up_ns_;
  const uint64_t span = started_ ? now - measured_at_ns_ : 0;
  if (backlogged_ && span > held_up) {
    window_ns_ += span - held_up;
    window_bytes_ += moved;
  }
  const bool any = moved > 0 || arrived != arrived_;
  if (any || under_way == 0 || !started_) moved_at_ns_ = now;
  if (any) heard_at_ns_ = now;
  started_ = true;
  measured_at_ns_ = now;
  acknowledged_ = acknowledged;
  arrived_ = arrived;
  held_up_ns_ = held_up_ns;
  backlogged_ = backlogged;
  if (window_ns_ < kWindowNs) return;
  rate_ = static_cast<double>(window_bytes_) * 1e9 / static_cast<double>(window_ns_);
  window_ns_ = window_bytes_ = 0;
  fresh_ = true;
}

// Of two windows in a row the better one counts, so that one pause of this process changes nothing.
LaneHealth::State LaneHealth::compare(double best_other) {
  if (!fresh_ || best_other <= 0) return state_;
  fresh_ = false;
  const double part = rate_ / best_other;
  const State vote = part < kBad ? State::Bad : part < kSlow ? State::Slow : State::Good;
  return std::min(vote, std::exchange(vote_, vote));
}

void LaneHealth::set_state(State state) {
  state_ = state;
  vote_ = State::Good;
  window_ns_ = window_bytes_ = 0;
  fresh_ = false;
}

}  // namespace theseus
