#include "runtime/publish.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/fd.h"
#include "net/agent_client.h"
#include "policy/expression.h"
#include "schedule/bytes.h"

namespace theseus {
namespace {

// All publications of the process, so that publish_sync() can wait for them.
struct Outstanding {
  std::mutex mutex;
  std::condition_variable changed;
  size_t count = 0;
  Status first_refusal;
};

Outstanding& outstanding() {
  static Outstanding& all = *new Outstanding;
  return all;
}

class Publication final : public Work {
 public:
  void finish(const Status& status) {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
      status_ = status;
    }
    changed_.notify_all();
    Outstanding& all = outstanding();
    {
      const std::lock_guard lock(all.mutex);
      --all.count;
      if (!status.ok() && all.first_refusal.ok()) all.first_refusal = status;
    }
    all.changed.notify_all();
  }

  bool done() const override {
    const std::lock_guard lock(mutex_);
    return done_;
  }

  Status wait(double seconds) override {
    std::unique_lock lock(mutex_);
    if (seconds < 0) {
      changed_.wait(lock, [this] { return done_; });
    } else if (!changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return done_; })) {
      return Status::timeout("the job's log has not answered within " + std::to_string(seconds) + " s");
    }
    return status_;
  }

  Status status() const override {
    const std::lock_guard lock(mutex_);
    return done_ ? status_ : Status(Code::InProgress, "on its way to the job's log");
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  Status status_;
};

Result<Fd> memory_file(const std::string& bytes) {
  Fd fd(memfd_create("theseus-plan", MFD_CLOEXEC));
  if (!fd.valid()) return Status::from_errno("cannot make room for a plan", errno);
  for (size_t written = 0; written < bytes.size();) {
    const ssize_t count = write(fd.get(), bytes.data() + written, bytes.size() - written);
    if (count < 0) return Status::from_errno("cannot make room for a plan", errno);
    written += static_cast<size_t>(count);
  }
  return fd;
}

Status check_policies(const ScheduleDefinition& schedule) {
  for (const std::string* policy : {&schedule.usable, &schedule.score}) {
    if (policy->empty()) continue;
    Result<Expression> parsed = Expression::parse(*policy);
    if (!parsed.ok()) {
      return Status::argument("schedule '" + schedule.name + "', " + (policy == &schedule.usable ? "usable" : "score") +
                              ": " + parsed.status().message());
    }
  }
  return {};
}

}  // namespace

std::shared_ptr<Work> publish(Record record, const std::string& plan) {
  {
    const std::lock_guard lock(outstanding().mutex);
    ++outstanding().count;
  }
  auto work = std::make_shared<Publication>();
  Fd body;
  Status status;
  if (auto* schedule = std::get_if<ScheduleDefinition>(&record); schedule != nullptr) {
    if (!plan.empty()) {
      schedule->plan_hash = hash_bytes(plan.data(), plan.size());
      schedule->plan_bytes = plan.size();
      Result<Fd> made = memory_file(plan);
      made.ok() ? void(body = std::move(*made)) : void(status = made.status());
    }
    if (status.ok()) status = check_policies(*schedule);
  }
  if (status.ok()) status = check(record);
  if (!status.ok()) {
    work->finish(status);
    return work;
  }
  AgentClient::instance().append(encode(record), std::move(body),
                                 [work](const Status& outcome) { work->finish(outcome); });
  return work;
}

Status publish_sync(double seconds) {
  Outstanding& all = outstanding();
  std::unique_lock lock(all.mutex);
  const auto over = [&all] { return all.count == 0; };
  if (seconds < 0) {
    all.changed.wait(lock, over);
  } else if (!all.changed.wait_for(lock, std::chrono::duration<double>(seconds), over)) {
    return Status::timeout(std::to_string(all.count) + " publications are not answered after " +
                           std::to_string(seconds) + " s");
  }
  return std::exchange(all.first_refusal, Status());
}

}  // namespace theseus
