// The ranks of a communicator as processes: fresh ones, since the library is inert in forked children.
#pragma once

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "rank_threads.h"

namespace theseus::testing {

inline std::string to_hex(const UniqueId& id) {
  std::string text;
  for (const char byte : id.bytes) {
    text += "0123456789abcdef"[static_cast<uint8_t>(byte) >> 4];
    text += "0123456789abcdef"[static_cast<uint8_t>(byte) & 15];
  }
  return text;
}

inline UniqueId from_hex(const std::string& text) {
  UniqueId id{};
  for (size_t i = 0; i < sizeof id.bytes; ++i)
    id.bytes[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return id;
}

// The running test again, in a process of its own, as `rank`.
inline pid_t spawn_rank(const UniqueId& id, int rank) {
  const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
  std::string filter = std::string("--gtest_filter=") + test.test_suite_name() + "." + test.name();
  std::string program = "/proc/self/exe", brief = "--gtest_brief=1";
  std::string rank_variable = "RANK_OF_TEST=" + std::to_string(rank), id_variable = "ID_OF_TEST=" + to_hex(id);
  char* arguments[] = {program.data(), filter.data(), brief.data(), nullptr};
  std::vector<char*> environment{rank_variable.data(), id_variable.data()};
  for (char** variable = environ; *variable != nullptr; ++variable) environment.push_back(*variable);
  environment.push_back(nullptr);
  pid_t process = -1;
  EXPECT_EQ(posix_spawn(&process, program.c_str(), nullptr, nullptr, arguments, environment.data()), 0);
  return process;
}

// Runs body(id, rank) in one process a rank, and expects each to end well; `killed`, if any, is one that kills itself.
inline void in_processes(int ranks, const std::function<void(const UniqueId&, int)>& body, int killed = -1) {
  if (const char* rank = std::getenv("RANK_OF_TEST"); rank != nullptr) {
    body(from_hex(std::getenv("ID_OF_TEST")), std::atoi(rank));
    return;
  }
  const UniqueId id = fresh_id();
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) processes.push_back(spawn_rank(id, rank));
  for (int rank = 0; rank < ranks; ++rank) {
    int status = -1;
    EXPECT_EQ(waitpid(processes[static_cast<size_t>(rank)], &status, 0), processes[static_cast<size_t>(rank)]);
    if (rank == killed) {
      EXPECT_TRUE(WIFSIGNALED(status));
    } else {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank << " ended with " << status;
    }
  }
}

}  // namespace theseus::testing
