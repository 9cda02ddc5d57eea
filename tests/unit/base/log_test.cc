// The log: NCCL's levels, subsystems and line format, and silence without NCCL_DEBUG.
#include "base/log.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <regex>
#include <sstream>

#include "base/env.h"

namespace theseus {
namespace {

TEST(Log, SubsystemLists) {
  EXPECT_EQ(parse_log_subsystems("INIT,net"), kLogInit | kLogNet);
  EXPECT_EQ(parse_log_subsystems("ALL"), static_cast<uint32_t>(kLogAll));
  EXPECT_EQ(parse_log_subsystems("^COLL"), ~static_cast<uint32_t>(kLogColl));
  EXPECT_EQ(parse_log_subsystems("nothing"), 0u);
}

TEST(Log, LevelsInAnyCase) {
  EXPECT_EQ(parse_log_level("warn"), LogLevel::Warn);
  EXPECT_EQ(parse_log_level("INFO"), LogLevel::Info);
  EXPECT_EQ(parse_log_level(""), LogLevel::None);
  EXPECT_EQ(parse_log_level("loud"), LogLevel::None);
}

TEST(Log, PathsExpand) { EXPECT_EQ(expand_log_path("/x/%h.%p.%%.%q%", "node", 7), "/x/node.7.%.%q%"); }

// What is written to NCCL_DEBUG_FILE at this level by one warning and two informational lines.
std::string written_at(const char* level) {
  std::string folder = testing::TempDir() + "theseus-log-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return "no folder";
  const std::string path = folder + "/log." + std::to_string(getpid());
  setenv("NCCL_DEBUG_FILE", (folder + "/log.%p").c_str(), 1);
  setenv("NCCL_DEBUG", level, 1);
  setenv("NCCL_DEBUG_SUBSYS", "NET", 1);
  reload_settings();
  set_log_device(3);
  THESEUS_WARN("warning %d", 1);
  THESEUS_INFO(kLogNet, std::string("of the net: 100%"));
  THESEUS_INFO(kLogColl, "of collectives");
  set_log_device(0);
  for (const char* name : {"NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"}) unsetenv(name);
  reload_settings();
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  unlink(path.c_str());
  rmdir(folder.c_str());
  return text.str();
}

TEST(Log, LinesHaveNcclsFormat) {
  const std::string text = written_at("INFO");
  const std::string prefix = R"([^:\n]+:)" + std::to_string(getpid()) + R"(:\d+ \[3\] )";
  EXPECT_TRUE(std::regex_search(text, std::regex(prefix + R"(log_test\.cc:\d+ NCCL WARN warning 1\n)"))) << text;
  EXPECT_TRUE(std::regex_search(text, std::regex(prefix + R"(NCCL INFO of the net: 100%\n)"))) << text;
  EXPECT_EQ(text.find("of collectives"), std::string::npos) << text;
}

TEST(Log, LevelsCutOff) {
  const std::string warnings = written_at("WARN");
  EXPECT_NE(warnings.find("warning 1"), std::string::npos);
  EXPECT_EQ(warnings.find("of the net"), std::string::npos);
  EXPECT_EQ(written_at(""), "");
  EXPECT_EQ(written_at("VERSION"), "");
}

}  // namespace
}  // namespace theseus
