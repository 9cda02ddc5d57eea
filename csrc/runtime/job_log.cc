#include "runtime/job_log.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "base/env.h"
#include "base/log.h"
#include "net/agent_client.h"
#include "net/process_server.h"
#include "schedule/bytes.h"

namespace theseus {
namespace {

// A look compares a counter in shared memory; waking up for it is what costs. So it is often where requests wait for
// what is new, and seldom in a process that makes none: 0.3 % of a core, and 0.1 %.
constexpr double kPollSeconds = 0.005;
constexpr double kIdlePollSeconds = 0.020;
constexpr int kLooks = 400;  // often, after an agreement

}  // namespace

JobLog& JobLog::instance() {
  static JobLog& log = *new JobLog;  // the watch thread's timer outlives static destructors
  return log;
}

bool JobLog::wanted() {
  const std::string& text = settings::adapt();
  if (text == "1" || text == "on") return true;
  if (text == "0" || text == "off") return false;
  const std::string& agent = settings::agent();
  return !settings::job_log().empty() || (!agent.empty() && agent != "off");
}

void JobLog::start() {
  {
    const std::lock_guard lock(mutex_);
    if (started_) return;
    started_ = true;
    file_ = settings::job_log();
  }
  Result<ProcessServer*> server = ProcessServer::get();
  if (!server.ok()) return;
  poll();
  EventLoop& loop = (*server)->loop();
  loop.post([this, &loop] { poll_every(loop, kIdlePollSeconds); });
}

void JobLog::poll_every(EventLoop& loop, double seconds) {
  period_ = seconds;
  timer_ = loop.add_timer(seconds, [this, &loop] {
    poll();
    looks_ = asked_.exchange(false, std::memory_order_relaxed) ? kLooks : std::max(0, looks_ - 1);
    const double wanted = looks_ > 0 ? kPollSeconds : kIdlePollSeconds;
    if (wanted == period_) return;
    loop.remove_timer(timer_);
    poll_every(loop, wanted);
  });
}

void JobLog::listen(std::weak_ptr<JobLogListener> listener) {
  const std::lock_guard lock(mutex_);
  std::erase_if(listeners_, [](const auto& known) { return known.expired(); });
  listeners_.push_back(std::move(listener));
}

void JobLog::poll() {
  std::vector<std::weak_ptr<JobLogListener>> listeners;
  {
    const std::lock_guard lock(mutex_);
    if (damaged_ || !read_some()) return;
    listeners = listeners_;
  }
  for (const auto& weak : listeners) {
    if (const auto listener = weak.lock()) listener->log_grew();
  }
}

// True where records were read. The caller holds the mutex.
bool JobLog::read_some() {
  if (reader_ == nullptr) {
    if (!file_.empty()) {
      Result<std::unique_ptr<SharedLogReader>> opened = SharedLogReader::open(file_);
      if (!opened.ok()) {
        static bool told = false;  // once: it may come yet, and is looked for again and again
        if (!told)
          THESEUS_WARN("THESEUS_JOB_LOG=%s: %s; until it can be read, schedules stay as built in", file_.c_str(),
                       opened.status().message().c_str());
        told = true;
        return false;
      }
      reader_ = std::move(*opened);
    } else {
      reader_ = AgentClient::instance().open_log();
    }
    if (reader_ == nullptr) return false;
    if (log_ == nullptr) log_ = std::make_unique<ContextLog>(reader_->log_id());
  }
  if (reader_->count() == reader_->position()) return false;
  bool grew = false;
  std::string bytes;
  for (;;) {
    Result<bool> next = reader_->next(bytes);
    if (next.ok() && !*next) break;
    Status status = next.ok() ? Status() : next.status();
    if (status.ok()) {
      Result<Record> record = decode_record(bytes);
      status = record.ok() ? log_->apply(*record) : record.status();
    }
    if (!status.ok()) {
      // What follows cannot be understood the way others do: keep what is known.
      damaged_ = true;
      THESEUS_WARN("the job's log cannot be read beyond record %" PRIu64 ": %s; the context stays as it is",
                   log_->position(), status.message().c_str());
      break;
    }
    grew = true;
  }
  return grew;
}

uint64_t JobLog::id() const {
  const std::lock_guard lock(mutex_);
  return log_ == nullptr ? 0 : log_->id();
}

uint64_t JobLog::position() const {
  asked_.store(true, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  return log_ == nullptr ? 0 : log_->position();
}

Result<Snapshot> JobLog::snapshot(uint64_t position, const ScheduleSet& loaded) const {
  const std::lock_guard lock(mutex_);
  if (log_ == nullptr) return Status::argument("there is no job log here yet");
  return log_->snapshot(position, loaded);
}

std::vector<Schedule> JobLog::schedules_from(uint32_t first) const {
  const std::lock_guard lock(mutex_);
  std::vector<Schedule> found;
  if (log_ == nullptr) return found;
  for (uint32_t id = first; id < log_->schedules(); ++id) {
    if (const Schedule* schedule = log_->schedule(id); schedule != nullptr) found.push_back(*schedule);
  }
  return found;
}

Result<std::string> JobLog::plan_body(uint64_t hash, uint64_t bytes) const {
  char name[32];
  std::snprintf(name, sizeof name, "%016" PRIx64, hash);
  const std::string folder = file_.empty() ? AgentClient::instance().body_folder() : file_ + ".bodies";
  const std::string path = folder + "/" + name;
  std::FILE* file = std::fopen(path.c_str(), "rbe");
  if (file == nullptr) return Status::system("the plan " + std::string(name) + " has not arrived on this host");
  std::string body(bytes, '\0');
  const size_t read = std::fread(body.data(), 1, body.size(), file);
  const bool at_end = std::fgetc(file) == EOF;
  std::fclose(file);
  if (read != bytes || !at_end || hash_bytes(body.data(), body.size()) != hash) {
    return Status::system("the plan " + std::string(name) + " on this host is not what the job's log names");
  }
  return body;
}

}  // namespace theseus
