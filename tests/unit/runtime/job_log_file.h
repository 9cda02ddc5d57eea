// One job log for all tests of this process, and requests that run until what is in it is installed.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "job_log_writer.h"
#include "rank_threads.h"
#include "runtime/impl.h"

namespace theseus::testing {

// The library reads its settings once, so one log serves all tests of this process.
inline JobLogWriter& job_log() {
  static JobLogWriter& log = []() -> JobLogWriter& {
    char folder[] = "/tmp/theseus-test-XXXXXX";
    if (mkdtemp(folder) == nullptr) abort();
    const std::string path = std::string(folder) + "/log";
    setenv("THESEUS_JOB_LOG", path.c_str(), 1);
    setenv("THESEUS_ADAPT", "on", 1);
    std::atexit([] { std::filesystem::remove_all(std::filesystem::path(getenv("THESEUS_JOB_LOG")).parent_path()); });
    return *new JobLogWriter(path);
  }();
  return log;
}

inline const bool ready_before_settings_are_read = (job_log(), true);

inline ScheduleDefinition schedule(const std::string& name, const std::string& algorithm, const std::string& usable) {
  ScheduleDefinition definition;
  definition.name = name;
  definition.algorithm = algorithm;
  definition.usable = usable;
  return definition;
}

// One AllReduce; returns the name of the schedule that it was to run, "" for a built-in choice.
inline std::string all_reduce(Communicator& communicator, size_t count) {
  std::vector<int64_t> data(count, communicator.rank() + 1);
  CollectiveCall call;
  call.send = call.recv = data.data();
  call.count = count;
  call.type = DataType::Int64;
  EXPECT_OK(communicator.submit(call));
  EXPECT_EQ(data, std::vector<int64_t>(count, sum_up_to(communicator.ranks())));
  return communicator.explain(Collective::AllReduce, count, DataType::Int64, 0).chosen;
}

// Runs requests on all ranks until the log's end is installed; returns per rank what each request was to run.
inline std::vector<std::vector<std::string>> run_until_installed(Ranks& ranks, size_t count) {
  std::vector<std::vector<std::string>> chosen(static_cast<size_t>(ranks.size()));
  const uint64_t end = job_log().count();
  ranks.run([&](Communicator& communicator) {
    // What is installed is equal on all ranks between two requests, so all leave this loop together. A schedule may be
    // ready a little later than its record is read, so a few agreements more.
    uint64_t enough = UINT64_MAX;
    for (;;) {
      const ContextState state = *communicator.context_state();
      if (state.installed >= end && enough == UINT64_MAX) enough = state.agreements + 4;
      if (state.agreements >= enough) break;
      chosen[static_cast<size_t>(communicator.rank())].push_back(all_reduce(communicator, count));
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    for (int i = 0; i < 3; ++i) {
      chosen[static_cast<size_t>(communicator.rank())].push_back(all_reduce(communicator, count));
    }
  });
  return chosen;
}

}  // namespace theseus::testing
