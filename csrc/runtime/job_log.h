// The job's log as this process reads it: one reader and one ContextLog, for all communicators.
//
// It comes from the node's agent (net/agent_client.h), or from the file that THESEUS_JOB_LOG names. The first log that
// is found stays: records of another one, which an agent that has lost its state might bring, are not looked at.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/shared_log.h"
#include "context/log.h"
#include "net/event_loop.h"

namespace theseus {

// Who is told of new records, on the watch thread.
class JobLogListener {
 public:
  virtual ~JobLogListener() = default;
  virtual void log_grew() = 0;
};

class JobLog {
 public:
  static JobLog& instance();
  // Whether this process is to agree on contexts at all (THESEUS_ADAPT).
  static bool wanted();

  // Reads from now on. Any number of times.
  void start();
  void listen(std::weak_ptr<JobLogListener> listener);

  uint64_t id() const;  // 0: none yet
  uint64_t position() const;
  // InvalidArgument: not read that far, or no log.
  Result<Snapshot> snapshot(uint64_t position, const ScheduleSet& loaded) const;
  // Definitions of the schedules with ids from `first` on.
  std::vector<Schedule> schedules_from(uint32_t first) const;
  // The bytes of a plan that the log names by hash. SystemError: not here (yet).
  Result<std::string> plan_body(uint64_t hash, uint64_t bytes) const;

 private:
  JobLog() = default;
  void poll();
  // On the watch thread.
  void poll_every(EventLoop& loop, double seconds);
  bool read_some();

  mutable std::mutex mutex_;
  // Since the last look: agreements ask, so where none does, no request is there to switch.
  mutable std::atomic<bool> asked_ = false;
  // On the watch thread: the timer, its period, and how often it is to look often still.
  EventLoop::TimerId timer_ = 0;
  double period_ = 0;
  int looks_ = 0;
  bool started_ = false;
  std::string file_;  // THESEUS_JOB_LOG
  std::unique_ptr<SharedLogReader> reader_;
  std::unique_ptr<ContextLog> log_;
  bool damaged_ = false;
  std::vector<std::weak_ptr<JobLogListener>> listeners_;
};

}  // namespace theseus
