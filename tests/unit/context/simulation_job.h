// The job around the ranks: time, the replicated log and the hosts' copies of it, with agents that fail.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "unit/context/random.h"
#include "unit/context/simulation.h"

namespace theseus {

// Microseconds. Events of one moment happen in the order they were made.
class SimulatedTime {
 public:
  uint64_t now() const { return now_; }
  void after(uint64_t delay, std::function<void()> what) { events_.push({now_ + delay, made_++, std::move(what)}); }
  // False: nothing is left to happen.
  bool step() {
    if (events_.empty()) return false;
    Event next = std::move(const_cast<Event&>(events_.top()));
    events_.pop();
    now_ = next.at;
    next.what();
    return true;
  }

 private:
  struct Event {
    uint64_t at;
    uint64_t number;
    std::function<void()> what;
    bool operator<(const Event& other) const { return at != other.at ? at > other.at : number > other.number; }
  };
  uint64_t now_ = 0;
  uint64_t made_ = 0;
  std::priority_queue<Event> events_;
};

// A host's shared log, which its ranks read.
struct HostLog {
  std::vector<std::string> records;
  uint64_t offset = 0;  // records that compaction took away before `records`
  bool frozen = false;

  void append(uint64_t index, const std::string& bytes, bool append_only) {
    if (!append_only) {
      records.push_back(bytes);
    } else if (frozen || index > records.size()) {
      return;
    } else if (index == records.size()) {
      records.push_back(bytes);
    } else if (records[index] != bytes) {
      frozen = true;
    }
  }
};

// What agents do: one log that all of them agree on, copied to each host in its own time, with restarts that replay,
// forget or fork.
class SimulatedJob {
 public:
  SimulatedJob(SimulatedTime& time, Random& random, const SimulationRules& rules, size_t hosts, uint64_t ends_at)
      : time_(time),
        random_(random),
        rules_(rules),
        ends_at_(ends_at),
        logs_(hosts),
        delivered_(hosts),
        published_(hosts) {
    open_with_hooks();
    late_ = random_.chance(0.5) ? random_.below(hosts) : hosts;
    for (size_t host = 0; host < hosts; ++host) {
      time_.after(host == late_ ? ends_at_ / 2 : random_.below(500), [this, host] { join(host); });
      publish_later(host);
    }
    if (random_.chance(0.6)) {
      const size_t host = random_.below(hosts);
      time_.after(random_.between(ends_at_ / 8, ends_at_), [this, host] { fail(host); });
    }
  }

  static constexpr uint64_t kLogId = 77;
  const ContextLog& log() const { return log_; }
  const HostLog& log_of(size_t host) const { return logs_[host]; }
  size_t hosts() const { return logs_.size(); }
  bool forked() const { return forked_; }
  bool any_frozen() const {
    return std::any_of(logs_.begin(), logs_.end(), [](const HostLog& log) { return log.frozen; });
  }
  // Whether each writer's element of the common array has the value that it wrote last.
  bool elements_are_kept() const {
    for (size_t host = 0; host < published_.size(); ++host) {
      if (log_.find_attribute("health")->values[host] != published_[host]) return false;
    }
    return true;
  }

 private:
  static constexpr uint64_t kLatestCommit = 800;  // after something was published

  void open_with_hooks() {
    commit(exogenous("health", static_cast<uint32_t>(logs_.size())));
    commit(hooked("calm", Hook::Smooth, "health", 0.25));
    commit(hooked("slow", Hook::Hysteresis, "health", 0.25, 0.75));
    commit(hooked("still", Hook::Dwell, "health", 0.003));
    commit(hooked("requests", Hook::Requests));
    commit(hooked("agreements", Hook::Agreements));
    commit(hooked("seconds", Hook::Seconds));
  }
  void commit(const Record& record) {
    if (log_.apply(record).ok()) records_.push_back(encode(record));
  }

  void publish_later(size_t host) {
    time_.after(random_.between(200, 4000), [this, host] {
      if (time_.now() >= ends_at_) return;
      if (random_.chance(0.5)) {
        publish_health(host);
      } else if (schedules_come_and_go_) {
        commit(random_schedule());
      } else {
        commit(random_record(random_, log_));
      }
      publish_later(host);
    });
  }
  // Another schedule, or one less.
  Record random_schedule() {
    std::vector<std::string> alive;
    for (uint32_t id = 0; id < log_.schedules(); ++id) {
      if (!log_.removed(id, log_.position())) alive.push_back(log_.schedule(id)->definition.name);
    }
    if (alive.size() > random_.below(6)) return ScheduleRemoval{alive[random_.below(alive.size())]};
    ScheduleDefinition schedule;
    schedule.name = name_of("s", log_.schedules());
    schedule.algorithm = "ring";
    return schedule;
  }
  // Arrives at the leader a while after it was made from what this host has read.
  void publish_health(size_t host) {
    ExogenousUpdate update{"health", {}};
    const double value = static_cast<double>(random_.below(9)) / 8;
    if (rules_.fold_elements) {
      update.elements = {{static_cast<uint32_t>(host), value}};
    } else {
      ContextLog seen(kLogId);
      for (const std::string& bytes : logs_[host].records) static_cast<void>(seen.apply(*decode_record(bytes)));
      const Attribute* health = seen.find_attribute("health");
      for (uint32_t i = 0; health != nullptr && i < health->values.size(); ++i) {
        update.elements.emplace_back(i, i == host ? value : health->values[i]);
      }
    }
    time_.after(random_.between(50, kLatestCommit), [this, host, value, update] {
      commit(update);
      if (!update.elements.empty()) published_[host] = value;
    });
  }

  void join(size_t host) {
    if (host == late_ && !rules_.ids_when_applied) compact(host);
    copy_later(host);
  }
  // What a snapshot would leave: no schedule that was removed, and so other ids.
  void compact(size_t host) {
    std::set<std::string> gone;
    for (uint32_t id = 0; id < log_.schedules(); ++id) {
      if (log_.removed(id, log_.position())) gone.insert(log_.schedule(id)->definition.name);
    }
    for (const std::string& bytes : records_) {
      Record record = *decode_record(bytes);
      auto* schedule = std::get_if<ScheduleDefinition>(&record);
      if (std::holds_alternative<ScheduleRemoval>(record) || (schedule != nullptr && gone.contains(schedule->name))) {
        ++logs_[host].offset;
        continue;
      }
      if (schedule != nullptr && gone.contains(schedule->replaces)) schedule->replaces.clear();
      logs_[host].records.push_back(encode(record));
    }
    delivered_[host] = records_.size();
  }
  void copy_later(size_t host) {
    time_.after(random_.chance(0.05) ? random_.between(1000, 6000) : random_.between(20, 900), [this, host] {
      if (delivered_[host] < records_.size()) {
        const uint64_t index = delivered_[host]++ - logs_[host].offset;
        logs_[host].append(index - renumbered_from_[host], records_[index + logs_[host].offset], rules_.append_only);
      }
      // Until the job is over and all is there, what was published last included.
      if (time_.now() < ends_at_ + kLatestCommit || delivered_[host] < records_.size()) copy_later(host);
    });
  }

  // The agent of a host starts again, with what it should not have, or without what it should.
  void fail(size_t host) {
    HostLog& log = logs_[host];
    const uint64_t kind = random_.below(3);
    if (kind == 0) {  // it applies its journal once more
      const std::vector<std::string> journal = log.records;
      for (uint64_t i = 0; i < journal.size(); ++i) log.append(i, journal[i], rules_.append_only);
    } else if (kind == 1) {  // it has forgotten all and counts from 0
      renumbered_from_[host] = delivered_[host] - log.offset;
    } else if (!log.frozen) {  // it takes a record that the others do not have
      ContextLog seen(kLogId);
      for (const std::string& bytes : log.records) static_cast<void>(seen.apply(*decode_record(bytes)));
      if (seen.position() == 0) return;
      forked_ = true;
      log.append(log.records.size(), encode(random_record(random_, seen)), rules_.append_only);
    }
  }

  SimulatedTime& time_;
  Random& random_;
  const SimulationRules& rules_;
  const uint64_t ends_at_;
  ContextLog log_{kLogId};
  std::vector<std::string> records_;
  std::vector<HostLog> logs_;
  std::vector<uint64_t> delivered_;
  std::map<size_t, uint64_t> renumbered_from_;
  std::vector<double> published_;
  size_t late_ = 0;
  const bool schedules_come_and_go_ = random_.chance(0.4);
  bool forked_ = false;
};

}  // namespace theseus
