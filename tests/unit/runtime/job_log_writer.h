// Writes a job's log in the agents' place.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>

#include "base/shared_log.h"
#include "context/record.h"
#include "schedule/bytes.h"

namespace theseus::testing {

// From any thread.
class JobLogWriter {
 public:
  explicit JobLogWriter(std::string path) : path_(std::move(path)) {
    Result<std::unique_ptr<SharedLogWriter>> opened = SharedLogWriter::open(path_, 4711);
    if (!opened.ok()) abort();
    writer_ = std::move(*opened);
  }
  void append(const Record& record) {
    const std::lock_guard lock(mutex_);
    const Status status = writer_->append(writer_->count(), encode(record));
    EXPECT_TRUE(status.ok()) << status.message();
  }
  // A schedule whose plan lies beside the log, as agents keep it.
  void append(ScheduleDefinition schedule, const std::string& plan) {
    schedule.plan_hash = hash_bytes(plan.data(), plan.size());
    schedule.plan_bytes = plan.size();
    const std::string folder = path_ + ".bodies";
    std::filesystem::create_directories(folder);
    char name[32];
    std::snprintf(name, sizeof name, "%016llx", static_cast<unsigned long long>(schedule.plan_hash));
    std::ofstream(std::filesystem::path(folder) / name, std::ios::binary) << plan;
    append(Record(schedule));
  }
  uint64_t count() const {
    const std::lock_guard lock(mutex_);
    return writer_->count();
  }

 private:
  mutable std::mutex mutex_;
  std::string path_;
  std::unique_ptr<SharedLogWriter> writer_;
};

}  // namespace theseus::testing
