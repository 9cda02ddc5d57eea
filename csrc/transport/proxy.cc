#include "transport/proxy.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace theseus {
namespace {

// Looks in vain, with the core offered to others between them, before it sleeps. A look is a system call for every
// connection that a message is awaited on.
constexpr int kLooks = 40;
// Sockets end a sleep, kernels do not: it sleeps for as long as it has waited already, within these bounds.
constexpr uint64_t kShortestSleepNs = 20'000;
constexpr uint64_t kLongestSleepNs = 1'000'000;
// How often a wait looks at its deadline.
constexpr auto kFlushLook = std::chrono::milliseconds(20);

Status closed() { return Status::usage("the connections of this communicator are closed"); }

}  // namespace

Proxy::Proxy(cuda::Driver& driver, std::unique_ptr<TcpLinks> links, uint32_t slot_bytes,
             std::function<void(const Status&)> on_failure)
    : driver_(driver), links_(std::move(links)), slot_bytes_(slot_bytes), on_failure_(std::move(on_failure)) {}

Result<ProxyEnd*> Proxy::connect(const Connection& connection) {
  Wanted wanted{connection, nullptr, nullptr, {}};
  ProxyEnd* end = nullptr;
  if (connection.outgoing) {
    Result<std::unique_ptr<ProxySender>> made = ProxySender::make(driver_, slot_bytes_);
    if (!made.ok()) return made.status();
    wanted.sender = std::move(*made);
    end = wanted.sender.get();
  } else {
    Result<std::unique_ptr<ProxyReceiver>> made = ProxyReceiver::make(driver_, slot_bytes_);
    if (!made.ok()) return made.status();
    wanted.receiver = std::move(*made);
    end = wanted.receiver.get();
  }
  std::unique_lock lock(mutex_);
  if (stopping_) return closed();
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  wanted_.push_back(&wanted);
  interrupted_.store(true, std::memory_order_relaxed);
  changed_.notify_all();
  changed_.wait(lock, [&] { return wanted.done; });
  if (!wanted.status.ok()) return wanted.status;
  return end;
}

void Proxy::announce(const std::vector<ProxyUse>& uses, uint64_t micro_batches) {
  const std::lock_guard lock(mutex_);
  for (const ProxyUse& use : uses) use.end->announce(use.messages * micro_batches);
  busy_ = true;
  changed_.notify_all();
}

Status Proxy::flush(const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  while (busy_ && status_.ok()) {
    if (stopping_) return closed();
    if (deadline.expired()) return deadline.status("handing over messages of kernels to the network");
    changed_.wait_for(lock, kFlushLook);
  }
  return status_;
}

void Proxy::abort() {
  const std::lock_guard lock(mutex_);
  if (status_.ok()) status_ = Status::usage("the connections of this communicator were aborted");
  interrupted_.store(true, std::memory_order_relaxed);
  changed_.notify_all();
}

void Proxy::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    interrupted_.store(true, std::memory_order_relaxed);
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Proxy::work() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  pthread_setname_np(pthread_self(), "theseus-proxy");
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !wanted_.empty() || (busy_ && status_.ok()); });
    interrupted_.store(stopping_, std::memory_order_relaxed);
    attach_wanted();
    if (stopping_) return;
    if (!busy_ || !status_.ok()) continue;
    lock.unlock();
    Result<bool> rested = pump();
    lock.lock();
    // Announcements come under the lock.
    if (rested.ok() && *rested && settled()) busy_ = false;
    if (!rested.ok() && status_.ok()) {
      status_ = rested.status();
      lock.unlock();
      on_failure_(rested.status());
      lock.lock();
    }
    changed_.notify_all();
  }
}

void Proxy::attach_wanted() {
  if (wanted_.empty()) return;
  for (Wanted* wanted : wanted_) {
    wanted->status = stopping_ ? closed() : attach(*wanted);
    wanted->done = true;
  }
  wanted_.clear();
  busy_ = true;  // the links were touched, and have to be lent to the watch again
  changed_.notify_all();
}

Status Proxy::attach(Wanted& wanted) {
  THESEUS_TRY(status_);
  const Connection& connection = wanted.connection;
  if (wanted.sender != nullptr) {
    Result<SendPort*> port = links_->send_port(connection.peer, connection.rail, connection.channel);
    if (!port.ok()) return port.status();
    wanted.sender->attach(*port);
    ends_.push_back(std::move(wanted.sender));
  } else {
    Result<RecvPort*> port = links_->recv_port(connection.peer, connection.rail, connection.channel);
    if (!port.ok()) return port.status();
    wanted.receiver->attach(*port);
    ends_.push_back(std::move(wanted.receiver));
  }
  return {};
}

bool Proxy::settled() const {
  return std::all_of(ends_.begin(), ends_.end(), [](const auto& end) { return end->settled(); });
}

Result<bool> Proxy::advance_ends() {
  bool moved = false;
  for (const auto& end : ends_) {
    Result<bool> advanced = end->advance();
    if (!advanced.ok()) return advanced;
    moved |= *advanced;
  }
  return moved;
}

Result<bool> Proxy::pump() {
  int looks = 0;
  uint64_t since = 0;
  while (!interrupted_.load(std::memory_order_relaxed)) {
    Result<bool> moved = advance_ends();
    if (!moved.ok()) return moved;
    THESEUS_TRY(links_->progress());
    if (*moved) {
      looks = 0;
      continue;
    }
    if (settled() && !links_->pending()) {
      THESEUS_TRY(links_->flush(Deadline::never()));  // nothing to wait for: lends them to the watch
      return true;
    }
    if (++looks < kLooks) {
      sched_yield();
      continue;
    }
    const uint64_t now = now_ns();
    if (looks == kLooks) since = now;
    links_->wait(static_cast<long>(std::clamp(now - since, kShortestSleepNs, kLongestSleepNs)));
  }
  return false;
}

}  // namespace theseus
