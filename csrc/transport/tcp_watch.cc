#include "transport/tcp_watch.h"

#include <sched.h>

#include <mutex>
#include <set>

#include "base/clock.h"
#include "net/event_loop.h"

namespace theseus {
namespace {

constexpr double kPeriodSeconds = 0.02;
constexpr int kIdleTicks = 50;  // before the timer stops

struct Registry {
  std::mutex mutex;  // guards `all`, and whoever is being tended
  std::set<Tended*> all;
  std::atomic<bool> running{false};
  // The watch thread alone touches what follows.
  EventLoop::TimerId timer = 0;
  int idle = 0;
};

Registry& registry() {
  static auto* instance = new Registry;
  return *instance;
}

}  // namespace

void Tended::lend(EventLoop& loop) {
  lent_ = true;
  state_.store(kLent);
  TcpWatch::rouse(loop);
}

void Tended::take_back() {
  for (;;) {
    int expected = state_.load(std::memory_order_relaxed);
    if (expected != kBorrowed && state_.compare_exchange_weak(expected, kOwned, std::memory_order_acquire)) break;
    sched_yield();
  }
  lent_ = false;
}

bool Tended::try_borrow() {
  int expected = kLent;
  return state_.compare_exchange_strong(expected, kBorrowed);
}

void TcpWatch::add(Tended* tended) {
  const std::lock_guard lock(registry().mutex);
  registry().all.insert(tended);
}

void TcpWatch::remove(Tended* tended) {
  const std::lock_guard lock(registry().mutex);
  registry().all.erase(tended);
}

// Sequentially consistent on both sides: either the stopping timer sees what was just lent, or who lends sees that the
// timer has stopped.
void TcpWatch::rouse(EventLoop& loop) {
  Registry& watch = registry();
  if (watch.running.load() || watch.running.exchange(true)) return;
  loop.post([&watch, &loop] {
    watch.idle = 0;
    watch.timer = loop.add_timer(kPeriodSeconds, [&watch, &loop] {
      watch.idle = tick() ? 0 : watch.idle + 1;
      if (watch.idle < kIdleTicks) return;
      watch.running.store(false);
      loop.remove_timer(watch.timer);
      if (tick()) rouse(loop);
    });
  });
}

// Whether anything is left to watch.
bool TcpWatch::tick() {
  const std::lock_guard lock(registry().mutex);
  bool busy = false;
  for (Tended* tended : registry().all) {
    if (!tended->try_borrow()) continue;
    const bool settled = tended->tend(now_ns());
    tended->state_.store(settled ? Tended::kSettled : Tended::kLent, std::memory_order_release);
    busy |= !settled;
  }
  return busy;
}

}  // namespace theseus
