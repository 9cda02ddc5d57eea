#include "flowsim/live.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "flowsim/engine.h"

namespace theseus::flowsim {

Live::Live(const Network& network)
    : network_(network), fair_(network), queue_(network.activities()), states_(network.activities()) {
  for (int32_t id = 0; id < network.activities(); ++id) states_[id].wanted = network.activity(id).priority;
}

Status Live::check_flow(int32_t flow) const {
  if (flow < 0 || flow >= network_.activities() || !network_.activity(flow).is_flow) {
    return Status::argument("there is no flow " + std::to_string(flow));
  }
  return {};
}

Status Live::start(int32_t flow, double bytes) {
  if (Status status = check_flow(flow); !status.ok()) return status;
  if (states_[flow].moves) return Status::argument(network_.name(flow) + " is under way");
  if (!(bytes > 0) || !std::isfinite(bytes)) {
    return Status::argument(network_.name(flow) + ": what it moves must be above 0 and finite");
  }
  if (network_.path(flow).empty()) return Status::argument(network_.name(flow) + " crosses no link");
  states_[flow].moves = true;
  states_[flow].left = bytes;
  states_[flow].since = now_;
  touch(flow);
  return {};
}

Status Live::set_priority(int32_t flow, int32_t priority) {
  if (Status status = check_flow(flow); !status.ok()) return status;
  if (priority < 0 || priority >= kPriorities) {
    return Status::argument(network_.name(flow) + ": priorities are 0 to 255, not " + std::to_string(priority));
  }
  if (states_[flow].wanted == priority) return {};
  states_[flow].wanted = priority;
  if (states_[flow].moves) touch(flow);
  return {};
}

Status Live::set_capacity(int32_t link, double capacity) {
  if (link < 0 || link >= network_.links()) return Status::argument("there is no link " + std::to_string(link));
  if (!(capacity >= 0) || !std::isfinite(capacity)) {
    return Status::argument("link " + std::to_string(link) + ": a capacity is finite and at least 0");
  }
  fair_.set_capacity(link, capacity);
  dirty_ = true;
  return {};
}

double Live::next() {
  settle();
  return queue_.empty() ? kNever : queue_.time();
}

Status Live::advance(double time, std::vector<int32_t>& finished) {
  const double next = this->next();
  if (!(time >= now_) || time > next * (1 + kSameInstant) || !std::isfinite(time)) {
    return Status::argument("time goes on from " + std::to_string(now_) + " to the next event at most, at " +
                            std::to_string(next) + "; not to " + std::to_string(time));
  }
  now_ = time;
  const double limit = now_ + kSameInstant * now_;
  while (!queue_.empty() && queue_.time() <= limit) {
    const int32_t flow = queue_.pop();
    stop(flow);
    finished.push_back(flow);
  }
  return {};
}

double Live::rate(int32_t flow) {
  settle();
  return check_flow(flow).ok() ? states_[flow].rate : 0;
}

double Live::left(int32_t flow) const {
  if (!check_flow(flow).ok()) return 0;
  const State& state = states_[flow];
  return std::max(0.0, state.left - state.rate * (now_ - state.since));
}

void Live::touch(int32_t flow) {
  if (states_[flow].touched) return;
  states_[flow].touched = true;
  touched_.push_back(flow);
}

void Live::stop(int32_t flow) {
  State& state = states_[flow];
  fair_.remove(flow);
  state.left = state.rate = 0;
  state.moves = state.shares = false;
  dirty_ = true;
}

// A flow joins the others, or leaves and joins them again with another priority, once an instant.
void Live::settle() {
  if (touched_.empty() && !dirty_) return;
  changed_.clear();
  for (const int32_t flow : touched_) {
    State& state = states_[flow];
    state.touched = false;
    if (state.shares) {
      fair_.remove(flow);
      set_rate(flow, 0);
    }
    fair_.set_priority(flow, state.wanted);
    fair_.add(flow);
    state.shares = true;
  }
  fair_.settle(changed_);
  for (const int32_t flow : changed_) set_rate(flow, fair_.rate(flow));
  touched_.clear();
  dirty_ = false;
}

void Live::set_rate(int32_t flow, double rate) {
  State& state = states_[flow];
  state.left = std::max(0.0, state.left - state.rate * (now_ - state.since));
  state.since = now_;
  state.rate = rate;
  if (rate > 0) {
    queue_.set(flow, now_ + state.left / rate);
  } else {
    queue_.remove(flow);
  }
}

}  // namespace theseus::flowsim
