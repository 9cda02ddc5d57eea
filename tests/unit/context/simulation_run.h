// The ranks' programs, the network between them, and what is checked at every request and at the end.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "unit/context/simulation_process.h"

namespace theseus {

class Simulation {
 public:
  Simulation(uint64_t seed, const SimulationRules& rules)
      : random_(seed), rules_(rules), job_(time_, random_, rules_, random_.between(2, 3), kEndsAt) {
    // No rank's communicators are used before all are there, as after an init.
    make_ranks();
    make_communicators();
    write_programs();
    for (int rank = 0; rank < ranks(); ++rank) {
      go_on_later(rank);
      read_later(rank);
    }
    if (random_.chance(0.2)) {
      const int rank = static_cast<int>(random_.below(ranks_.size()));
      time_.after(random_.between(3000, kEndsAt),
                  [this, rank] { ranks_[static_cast<size_t>(rank)].process->read_anew(); });
    }
    if (random_.chance(0.15)) time_.after(random_.between(3000, kEndsAt), [this] { kill(); });
  }

  SimulationResult run() {
    while (result_.violation.empty() && time_.step()) {
    }
    if (result_.violation.empty() && !result_.killed) check_end();
    result_.records = job_.log().position();
    for (const Communicator& one : communicators_) {
      result_.agreements += member(one, 0).machine.agreements();
    }
    return result_;
  }

 private:
  static constexpr uint64_t kEndsAt = 30000;  // no records and no failures after that
  static constexpr uint64_t kQuietAt = 60000;
  static constexpr uint64_t kRequestsAfterwards = 90;  // more than two agreements' worth: K is 20 at most
  static constexpr size_t kMostWaiting = 400;

  enum class Step { Synchronise, WaitForQuiet, Request };
  struct Action {
    Step step;
    size_t communicator;
  };
  struct Rank {
    size_t host = 0;
    std::unique_ptr<SimulatedProcess> process;
    std::deque<Action> program;
    size_t unfinished = 0;
    bool is_blocked = false;  // in the first action of the program
  };
  struct Seen {
    uint64_t context;
    uint64_t position;
    uint64_t hooks;
    uint64_t values;
    int32_t schedule;
    bool operator==(const Seen&) const = default;
  };
  struct Communicator {
    size_t index = 0;
    std::vector<int> ranks;               // of the job, by rank of the communicator
    std::map<uint64_t, Seen> seen;        // by request, of the first rank that got there
    std::map<uint64_t, size_t> arrivals;  // by request that is not complete
  };

  int ranks() const { return static_cast<int>(ranks_.size()); }
  Rank& rank_at(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  SimulatedMember& member(const Communicator& communicator, size_t place) {
    return *rank_at(communicator.ranks[place]).process->members.at(communicator.index);
  }
  void violate(const std::string& what) {
    if (result_.violation.empty()) result_.violation = what;
  }

  void make_ranks() {
    const size_t hosts = job_.hosts();
    for (size_t i = 0; i < random_.between(hosts, 6); ++i) ranks_.emplace_back();
    for (size_t i = 0; i < ranks_.size(); ++i) {
      ranks_[i].host = i < hosts ? i : random_.below(hosts);
      ranks_[i].process = std::make_unique<SimulatedProcess>(time_, random_, rules_, job_.log_of(ranks_[i].host));
    }
  }
  void make_communicators() {
    const size_t number = random_.between(2, 3);
    for (size_t index = 0; index < number; ++index) {
      Communicator one;
      one.index = index;
      for (int rank = 0; rank < ranks(); ++rank) one.ranks.push_back(rank);
      random_.shuffle(one.ranks);
      if (index > 0) one.ranks.resize(random_.between(2, one.ranks.size()));
      std::vector<int> hosts;
      for (const int rank : one.ranks) hosts.push_back(static_cast<int>(rank_at(rank).host));
      for (size_t place = 0; place < one.ranks.size(); ++place) {
        SimulatedProcess& process = *rank_at(one.ranks[place]).process;
        process.members[index] =
            std::make_unique<SimulatedMember>(process, static_cast<int>(place), hosts, rules_.agreement);
      }
      communicators_.push_back(std::move(one));
    }
  }
  // Between two synchronisations every rank issues the same requests, communicators in an order of its own: legal,
  // since nothing there waits for another rank's program. The third communicator is used late, as if it was made then.
  void write_programs() {
    const uint64_t segments = random_.between(5, 9);
    for (uint64_t segment = 0; segment <= segments; ++segment) {
      std::vector<uint64_t> counts;
      for (size_t c = 0; c < communicators_.size(); ++c) {
        const bool is_used = c < 2 || segment > segments / 2;
        counts.push_back(segment == segments ? kRequestsAfterwards : is_used ? random_.below(11) : 0);
      }
      for (Rank& rank : ranks_) {
        if (segment == segments) rank.program.push_back({Step::WaitForQuiet, 0});
        std::vector<size_t> order;
        for (const auto& [c, member] : rank.process->members) order.insert(order.end(), counts[c], c);
        random_.shuffle(order);
        for (const size_t c : order) rank.program.push_back({Step::Request, c});
        rank.program.push_back({Step::Synchronise, 0});
      }
    }
  }

  void read_later(int rank) {
    time_.after(random_.between(50, 700), [this, rank] {
      SimulatedProcess& process = *rank_at(rank).process;
      process.read();
      for (const auto& [index, member] : process.members) {
        if (member->waiting() > kMostWaiting) violate("what waits for a communicator grows without bound");
      }
      if (time_.now() < kQuietAt || !rank_at(rank).program.empty()) {
        if (!result_.killed && time_.now() < 10 * kQuietAt) read_later(rank);
      }
    });
  }
  void kill() {
    // One rank is gone; a moment later every communicator with it has failed, and the job with those.
    time_.after(500, [this] {
      result_.killed = true;
      for (Rank& rank : ranks_) rank.program.clear();
    });
  }

  void go_on_later(int rank) {
    const uint64_t pace = random_.chance(0.03) ? random_.between(1000, 5000) : random_.between(5, 250);
    time_.after(pace, [this, rank] { go_on(rank); });
  }
  void go_on(int rank) {
    Rank& own = rank_at(rank);
    if (own.program.empty() || !result_.violation.empty()) return;
    const Action action = own.program.front();
    own.is_blocked = true;
    if (action.step == Step::Synchronise && own.unfinished > 0) return;
    if (action.step == Step::Request && !issue(rank, communicators_[action.communicator])) return;
    own.is_blocked = false;
    own.program.pop_front();
    if (action.step == Step::WaitForQuiet && time_.now() < kQuietAt) {
      time_.after(kQuietAt - time_.now(), [this, rank] { go_on(rank); });
    } else {
      go_on_later(rank);
    }
  }

  // False: it has to wait for an agreement.
  bool issue(int rank, Communicator& communicator) {
    SimulatedProcess& process = *rank_at(rank).process;
    SimulatedMember& member = *process.members.at(communicator.index);
    const uint64_t request = member.next_request;
    if (!rules_.fresh_communicators && request == 1 && communicator.index > 0)
      member.hooks = process.members.begin()->second->hooks;
    send(communicator, rank, member.machine.reach(request));
    if (member.machine.must_wait(request)) return false;
    if (!member.install(request, result_.switches)) violate("an installed position went back");
    ++member.next_request;
    ++process.requests;
    ++result_.requests;
    const auto [schedule, values] = member.select(request, random_.chance(0.5));
    if (schedule >= 0 && !process.loaded().test(static_cast<uint32_t>(schedule))) {
      violate("a schedule was selected that is not loaded");
    }
    const Seen seen{member.installed.digest, member.installed.position, member.hooks.digest(), values, schedule};
    if (communicator.seen.try_emplace(request, seen).first->second != seen) {
      violate("ranks differ in a request: context, endogenous attributes, values or schedule");
    }
    member.unfinished[request] = schedule;
    ++rank_at(rank).unfinished;
    if (++communicator.arrivals[request] == communicator.ranks.size()) {
      communicator.arrivals.erase(request);
      time_.after(random_.between(10, 300), [this, &communicator, request] { complete(communicator, request); });
    }
    return true;
  }
  void complete(Communicator& communicator, uint64_t request) {
    for (const int rank : communicator.ranks) {
      Rank& own = rank_at(rank);
      std::map<uint64_t, int32_t>& unfinished = own.process->members.at(communicator.index)->unfinished;
      const int32_t schedule = unfinished.at(request);
      if (schedule >= 0 && !own.process->loaded().test(static_cast<uint32_t>(schedule))) {
        violate("a schedule was unloaded under a request");
      }
      unfinished.erase(request);
      --own.unfinished;
      if (own.is_blocked && own.program.front().step == Step::Synchronise) go_on(rank);
    }
  }

  // In order between two ranks of a communicator, in any order else; now and then a network is away for a while.
  void send(const Communicator& communicator, int from, std::vector<AgreementMessage> messages) {
    for (AgreementMessage& message : messages) {
      ++result_.messages;
      const int to = communicator.ranks[static_cast<size_t>(message.to)];
      uint64_t& last = arrives_[{communicator.index, from, to}];
      const uint64_t delay = random_.chance(0.01) ? random_.between(2000, 8000) : random_.between(10, 300);
      last = std::max(last, time_.now() + delay);
      const size_t index = communicator.index;
      time_.after(last - time_.now(), [this, index, from, to, bytes = std::move(message.bytes)] {
        receive(communicators_[index], from, to, bytes);
      });
    }
  }
  void receive(Communicator& communicator, int from, int to, const std::string& bytes) {
    Rank& own = rank_at(to);
    const auto place =
        std::find(communicator.ranks.begin(), communicator.ranks.end(), from) - communicator.ranks.begin();
    Result<std::vector<AgreementMessage>> answers =
        own.process->members.at(communicator.index)->machine.receive(static_cast<int>(place), bytes);
    if (!answers.ok()) return violate(answers.status().message());
    send(communicator, to, std::move(*answers));
    if (own.process->offer_was_broken && !job_.forked()) violate("what a rank offered it could not keep");
    if (!own.is_blocked || own.program.empty()) return;
    const Action waiting = own.program.front();
    if (waiting.step == Step::Request && waiting.communicator == communicator.index) go_on(to);
  }

  void check_end() {
    for (const Rank& rank : ranks_) {
      if (!rank.program.empty()) return violate("a rank waits for ever");
    }
    if (!job_.elements_are_kept()) return violate("a writer's element was lost");
    if (job_.forked()) return;  // then the old context stays: nothing newer is common
    for (Rank& rank : ranks_) {
      while (!rank.process->has_read_all()) rank.process->read();
      rank.process->read();
    }
    for (const Communicator& one : communicators_) check_newest(one);
    if (!job_.any_frozen()) check_unloaded();
  }
  // All have installed the newest position that all have read, with what all have loaded.
  void check_newest(const Communicator& communicator) {
    uint64_t newest = job_.log().position();
    ScheduleSet loaded = member(communicator, 0).offer().loaded;
    for (size_t place = 0; place < communicator.ranks.size(); ++place) {
      const Offer held = member(communicator, place).offer();
      newest = std::min(newest, held.position);
      loaded.intersect(held.loaded);
    }
    if (newest < job_.log().position() && !job_.any_frozen()) violate("a rank has not read the log to its end");
    const Snapshot& installed = member(communicator, 0).installed;
    if (installed.position != newest) violate("the newest common context was not reached");
    ScheduleSet in_use;
    for (const Schedule& schedule : installed.schedules) in_use.set(schedule.id);
    if (in_use != loaded) violate("not all that is loaded everywhere is in use");
  }
  void check_unloaded() {
    for (const Rank& rank : ranks_) {
      const ContextLog& log = rank.process->log();
      for (uint32_t id = 0; id < log.schedules(); ++id) {
        if (log.removed(id, log.position()) && rank.process->loaded().test(id))
          violate("a removed schedule stays loaded");
      }
    }
  }

  SimulatedTime time_;
  Random random_;
  const SimulationRules rules_;
  SimulatedJob job_;
  std::vector<Rank> ranks_;
  std::vector<Communicator> communicators_;
  std::map<std::tuple<size_t, int, int>, uint64_t> arrives_;
  SimulationResult result_;
};

inline SimulationResult simulate(uint64_t seed, const SimulationRules& rules) { return Simulation(seed, rules).run(); }

}  // namespace theseus
