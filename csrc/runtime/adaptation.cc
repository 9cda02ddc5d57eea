#include "runtime/adaptation.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/env.h"
#include "base/log.h"
#include "context/agreement_tree.h"
#include "runtime/outside_plan.h"

namespace theseus {
namespace {

// Agreements are this far apart where requests allow: what is published takes effect about so much later. Requests that
// take more than half of it have one each, and wait for it: for a few messages between hosts.
constexpr double kAheadSeconds = 0.05;
// A pause of the application counts as so long a request at most.
constexpr double kLongestRequest = 0.12;
// The machine lets no more decisions wait than it can have candidates for; rejected ones come on top.
constexpr size_t kMostCandidates = kMostUndone + 16;
constexpr auto kLook = std::chrono::milliseconds(20);
constexpr auto kMailLook = std::chrono::microseconds(200);
constexpr uint64_t kSpinNs = 100'000;
constexpr uint64_t kNudgeNs = 1'000'000;
constexpr uint64_t kPauseNs = 20'000'000;
constexpr uint64_t kLooks = 4;

uint64_t wall_clock_us() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
}

}  // namespace

Adaptation::Adaptation(const CommId& communicator, int rank, const std::vector<Peer>& peers, const Topology& topology)
    : communicator_(communicator),
      rank_(rank),
      schedules_(std::make_shared<Schedules>(rank, topology, dependable_slots(peers))) {}

Adaptation::~Adaptation() { close(); }

void Adaptation::close() {
  if (membership_ != nullptr) membership_->stop();
  if (links_ != nullptr) links_->close();
}

Result<std::shared_ptr<Adaptation>> Adaptation::start(const CommId& communicator, int rank,
                                                      const std::vector<Peer>& peers, const Topology& topology,
                                                      Links& data_links) {
  std::shared_ptr<Adaptation> own(new Adaptation(communicator, rank, peers, topology));
  own->machine_ = std::make_unique<Agreement>(rank, topology.host_of_rank, *own);
  JobLog::instance().start();
  JobLog::instance().listen(own);
  own->schedules_->learn();
  // A peer's first message may come before open() returns: it waits for this lock.
  const std::lock_guard lock(own->mutex_);
  Result<std::unique_ptr<AgreementLinks>> links =
      AgreementLinks::open(communicator, rank, peers, topology,
                           [weak = std::weak_ptr(own)](int from, AgreementLinks::Kind kind, const std::string& bytes) {
                             if (const auto adaptation = weak.lock()) adaptation->receive(from, kind, bytes);
                           });
  if (!links.ok()) return links.status();
  own->links_ = std::move(*links);
  if (data_links.local_ranks() == static_cast<int>(peers.size())) {
    const AgreementTree tree = agreement_trees(topology.host_of_rank)[static_cast<size_t>(rank)];
    std::vector<int> neighbours = tree.children;
    if (tree.parent >= 0) neighbours.push_back(tree.parent);
    Result<Mailboxes> opened = Mailboxes::open(data_links, neighbours);
    if (!opened.ok()) return opened.status();
    own->mailboxes_ = std::move(*opened);
  }
  if (settings::job_log().empty()) {
    own->membership_ =
        Membership::start(communicator, rank, peers, topology, [raw = own->links_.get()](int to, std::string bytes) {
          raw->send(to, AgreementLinks::Kind::Member, std::move(bytes));
        });
  }
  own->boundary_ns_ = now_ns();
  own->after_step(own->machine_->reach(1));
  return own;
}

Offer Adaptation::offer() {
  schedules_->learn_awaited();
  Offer offer;
  offer.log_id = JobLog::instance().id();
  offer.position = JobLog::instance().position();
  offer.loaded = schedules_->loaded();
  offer.next_k = next_k_;
  offer.time_us = wall_clock_us();
  state_.log_id = offer.log_id;
  state_.read = offer.position;
  return offer;
}

Confirmation Adaptation::decode(const Offer& candidate) {
  Confirmation confirmation;
  Result<Snapshot> snapshot = JobLog::instance().snapshot(candidate.position, candidate.loaded);
  confirmation.acceptable = snapshot.ok() && candidate.position >= state_.installed;
  if (snapshot.ok()) {
    for (const Schedule& schedule : snapshot->schedules) {
      confirmation.acceptable &= schedules_->find(schedule.id) != nullptr;
    }
    confirmation.lowest_digest = confirmation.highest_digest = snapshot->digest;
    candidates_.push_back(std::move(*snapshot));
    if (candidates_.size() > kMostCandidates) candidates_.pop_front();
  }
  if (!confirmation.acceptable) confirmation.held_back_by = rank_;
  return confirmation;
}

void Adaptation::take(int from, std::string_view bytes) {
  Result<std::vector<AgreementMessage>> answers = machine_->receive(from, bytes);
  if (answers.ok()) {
    after_step(std::move(*answers));
  } else if (broken_.ok()) {
    broken_ = answers.status();
  }
}

void Adaptation::look() {
  for (bool found = true; found;) {
    found = false;
    for (const int peer : mailboxes_.peers()) {
      const Message* message = mailboxes_.look(peer);
      if (message == nullptr) continue;
      const std::string bytes(static_cast<const char*>(message->data), message->bytes);
      mailboxes_.drop(peer);
      take(peer, bytes);
      found = true;
    }
  }
}

void Adaptation::nudge() {
  // Again and again while somebody waits: what a nudged rank answers may call for another answer of it.
  const uint64_t now = now_ns();
  if (now - nudged_ns_ < kNudgeNs) return;
  nudged_ns_ = now;
  for (const int peer : mailboxes_.peers()) links_->send(peer, AgreementLinks::Kind::Nudge, {});
}

void Adaptation::receive(int from, AgreementLinks::Kind kind, const std::string& bytes) {
  std::unique_lock lock(mutex_);
  switch (kind) {
    case AgreementLinks::Kind::Member: {
      const std::shared_ptr<Membership> membership = membership_;
      lock.unlock();
      if (membership != nullptr) membership->receive(from, bytes);
      return;
    }
    case AgreementLinks::Kind::Agreement: take(from, bytes); break;
    case AgreementLinks::Kind::Nudge:
      look();
      if (machine_->under_way()) nudge();
      break;
  }
  decided_.notify_all();
}

void Adaptation::after_step(std::vector<AgreementMessage> messages) {
  const uint64_t now = now_ns();
  if (machine_->agreements() != decided_count_) {
    decided_count_ = machine_->agreements();
    if (begun_ns_ != 0) state_.agreement_ns += now - begun_ns_;
    begun_ns_ = 0;
  }
  if (machine_->under_way() && begun_ns_ == 0) begun_ns_ = now;
  state_.messages += messages.size();
  for (AgreementMessage& message : messages) {
    if (!mailboxes_.has(message.to)) {
      links_->send(message.to, AgreementLinks::Kind::Agreement, std::move(message.bytes));
    } else if (Status sent = mailboxes_.send(message.to, message.bytes); !sent.ok() && broken_.ok()) {
      broken_ = sent;
    }
  }
}

// With mailboxes others are as a rule on their way to the same request, and nothing needs the watch thread.
Status Adaptation::wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& over,
                        const std::function<Status()>& pause) {
  const bool by_mail = !mailboxes_.peers().empty();
  const uint64_t since = now_ns();
  uint64_t paused = since;
  for (;;) {
    look();
    if (over()) return {};
    if (!broken_.ok()) return broken_;
    const uint64_t now = now_ns();
    if (by_mail && now - since < kSpinNs) {
      lock.unlock();
      sched_yield();
      lock.lock();
      continue;
    }
    if (by_mail) nudge();
    decided_.wait_for(lock, by_mail ? kMailLook : kLook);
    if (now - paused < kPauseNs) continue;
    paused = now;
    lock.unlock();
    const Status status = pause();
    lock.lock();
    THESEUS_TRY(status);
  }
}

uint64_t Adaptation::event_after(uint64_t request) const {
  const uint64_t event = machine_->next_event();
  if (mailboxes_.peers().empty() || !machine_->under_way() || event <= request) return event;
  // Look a few times on the way, so that the decision is there when its request comes.
  return request + std::max<uint64_t>(1, (event - request) / kLooks);
}

Result<Arrival> Adaptation::arrive(uint64_t request, const std::function<Status()>& pause) {
  std::unique_lock lock(mutex_);
  look();
  next_k_ = propose_k(request);
  after_step(machine_->reach(request));
  Arrival arrival;
  arrival.waited = machine_->must_wait(request);
  if (arrival.waited) THESEUS_TRY(wait(lock, [&] { return !machine_->must_wait(request); }, pause));
  if (!broken_.ok()) return broken_;
  if (const std::unique_ptr<Decision> decision = machine_->take(request); decision != nullptr) {
    arrival.changed = install(*decision);
    if (!broken_.ok()) return broken_;
  }
  next_event_ = event_after(request);
  return arrival;
}

// So many requests as take kAheadSeconds. Few requests over a short time say little of the next ones: a large one among
// small ones would seem to be over for good. So what one is believed to take falls by halves only, and K grows by
// doubling; K shrinks at once.
uint32_t Adaptation::propose_k(uint64_t request) const {
  if (request <= boundary_) return next_k_;
  const double most = std::min(2.0 * std::max(1u, state_.next_k), double{kLargestK});
  return static_cast<uint32_t>(std::clamp(kAheadSeconds / std::max(seconds_each(request), 1e-9), 1.0, most));
}

double Adaptation::seconds_each(uint64_t request) const {
  const double since = static_cast<double>(now_ns() - boundary_ns_) / 1e9;
  const double each = since / static_cast<double>(std::max<uint64_t>(1, request - boundary_));
  return std::max(std::min(each, kLongestRequest), seconds_each_ / 2);
}

bool Adaptation::install(const Decision& decision) {
  if (decision.changed) install_candidate(decision);
  (void)hooks_.install(installed_, decision.boundary, decision.candidate.time_us);
  seconds_each_ = seconds_each(decision.boundary);
  boundary_ = decision.boundary;
  boundary_ns_ = now_ns();
  state_.agreements = decision.agreement + 1;
  state_.next_k = static_cast<uint32_t>(decision.next_boundary - decision.boundary);
  state_.held_back_by = decision.held_back_by;
  if (selector_ == nullptr && !installed_.schedules.empty()) selector_ = std::make_unique<Selector>(installed_, hooks_);
  // Values of hooks move at every agreement.
  const bool moved = selector_ != nullptr && selector_->update(installed_);
  if (decision.changed) {
    THESEUS_INFO(kLogTuning, "communicator %s: context at position %lu installed before request %lu, %zu schedules",
                 communicator_.to_string().c_str(), static_cast<unsigned long>(installed_.position),
                 static_cast<unsigned long>(decision.boundary), installed_.schedules.size());
  }
  return decision.changed || moved;
}

void Adaptation::install_candidate(const Decision& decision) {
  // One that was rejected may lie before ours.
  while (!candidates_.empty() && candidates_.front().digest != decision.digest) candidates_.pop_front();
  if (candidates_.empty()) {
    broken_ = Status::internal("a context that was agreed on is gone");
    return;
  }
  Snapshot next = std::move(candidates_.front());
  candidates_.pop_front();
  // All ranks could run these, so what is no longer among them was removed.
  for (const Schedule& schedule : installed_.schedules) {
    const bool stays = std::any_of(next.schedules.begin(), next.schedules.end(),
                                   [&](const Schedule& other) { return other.id == schedule.id; });
    if (!stays) schedules_->drop(schedule.id);
  }
  installed_ = std::move(next);
  state_.installed = installed_.position;
  ++state_.epoch;
}

std::vector<ScheduleVerdict> Adaptation::explain(const PolicyRequest& request, uint64_t id) {
  return selector_ == nullptr ? std::vector<ScheduleVerdict>{} : selector_->explain(request, id);
}

Status Adaptation::finish(const std::function<Status()>& pause) {
  std::unique_lock lock(mutex_);
  return wait(lock, [&] { return !machine_->under_way(); }, pause);
}

ContextState Adaptation::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

}  // namespace theseus
