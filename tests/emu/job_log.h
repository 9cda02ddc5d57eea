// Tests whose communicators follow a job's log. Settings are read once a process, and the other tests of this program
// want none, so each runs in a process of its own: a disabled test, started with a log that the test itself writes.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "unit/runtime/job_log_writer.h"

namespace theseus::testing {

// The log that run_with_log() made for this process.
inline JobLogWriter& job_log() {
  static JobLogWriter& log = *new JobLogWriter(std::getenv("THESEUS_JOB_LOG"));
  return log;
}

// Seconds after which such a process is stuck.
inline constexpr unsigned kLimit = 300;

// Runs the disabled test `name` in a process with an empty job log, and expects it to pass.
inline void run_with_log(const std::string& name) {
  char folder[] = "/tmp/theseus-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string log = std::string(folder) + "/log", filter = "--gtest_filter=" + name;
  const pid_t process = fork();
  if (process == 0) {
    setenv("THESEUS_JOB_LOG", log.c_str(), 1);
    setenv("THESEUS_ADAPT", "on", 1);
    setenv("GTEST_ALSO_RUN_DISABLED_TESTS", "1", 1);  // of ranks that it starts, too
    alarm(kLimit);
    execl("/proc/self/exe", "test_emu", filter.c_str(), "--gtest_brief=1", nullptr);
    _exit(127);
  }
  int status = -1;
  EXPECT_EQ(waitpid(process, &status, 0), process);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << name << " ended with " << status;
  std::filesystem::remove_all(folder);
}

inline ScheduleDefinition schedule(const std::string& name, Collective collective, const std::string& algorithm,
                                   const std::string& usable) {
  ScheduleDefinition definition;
  definition.name = name;
  definition.collective = collective;
  definition.algorithm = algorithm;
  definition.usable = usable;
  return definition;
}

}  // namespace theseus::testing
