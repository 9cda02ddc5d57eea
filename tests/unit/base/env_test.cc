// Settings: where a value comes from, what is accepted, and that bad ones are named and replaced by the default.
#include "base/env.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>

namespace theseus {
namespace {

class Settings : public ::testing::Test {
 protected:
  void SetUp() override {
    // No file of whoever runs the tests may matter.
    set("HOME", "/nonexistent");
  }
  void TearDown() override {
    for (const std::string& name : names_) unsetenv(name.c_str());
    reload_settings();
  }
  void set(const std::string& name, const std::string& value) {
    names_.insert(name);
    setenv(name.c_str(), value.c_str(), 1);
    reload_settings();
  }
  static bool warned(const std::string& part) {
    const auto warnings = settings_warnings();
    return std::any_of(warnings.begin(), warnings.end(),
                       [&](const std::string& warning) { return warning.find(part) != std::string::npos; });
  }
  static SettingDescription described(const std::string& name) {
    for (const auto& setting : describe_settings()) {
      if (setting.name == name) return setting;
    }
    return {};
  }
  std::set<std::string> names_;
};

TEST_F(Settings, DefaultsHoldWithoutAnything) {
  EXPECT_EQ(settings::slots(), 8);
  EXPECT_EQ(settings::heartbeat_timeout(), 10.0);
  EXPECT_EQ(settings::timeout(), 0.0);
  EXPECT_TRUE(settings::shm());
  EXPECT_EQ(described("THESEUS_SLOTS").source, "default");
}

TEST_F(Settings, IntegersAreReadAsCDoes) {
  set("THESEUS_SLOTS", "010");
  EXPECT_EQ(settings::slots(), 8);
  set("THESEUS_SLOTS", "0x10");
  EXPECT_EQ(settings::slots(), 16);
  set("THESEUS_SLOTS", " 12 ");
  EXPECT_EQ(settings::slots(), 12);
  EXPECT_EQ(described("THESEUS_SLOTS").source, "environment");
  EXPECT_EQ(described("THESEUS_SLOTS").default_value, "8");
}

TEST_F(Settings, BadValuesAreNamedAndTheDefaultHolds) {
  for (const char* bad : {"eight", "8x", "99999999999999999999", "1", "100000", "8.5"}) {
    set("THESEUS_SLOTS", bad);
    EXPECT_EQ(settings::slots(), 8) << bad;
    EXPECT_TRUE(warned(std::string("THESEUS_SLOTS=") + bad)) << bad;
  }
  set("THESEUS_TIMEOUT", "nan");
  EXPECT_EQ(settings::timeout(), 0.0);
  EXPECT_TRUE(warned("THESEUS_TIMEOUT=nan"));
  set("THESEUS_NIC_RATE", "fast");
  EXPECT_EQ(settings::nic_rate(), 0.0);
  EXPECT_TRUE(warned("THESEUS_NIC_RATE=fast"));
}

TEST_F(Settings, AliasesCountAndTheSettingsOwnNameWins) {
  set("NCCL_ALGO", "ring");
  EXPECT_EQ(settings::algo(), "ring");
  set("THESEUS_ALGO", "tree");
  EXPECT_EQ(settings::algo(), "tree");
  set("NCCL_SHM_DISABLE", "1");
  EXPECT_FALSE(settings::shm());
  set("NCCL_SHM_DISABLE", "0");
  EXPECT_TRUE(settings::shm());
}

TEST_F(Settings, UnknownVariablesAreNamed) {
  set("THESEUS_SLOTZ", "9");
  EXPECT_TRUE(warned("THESEUS_SLOTZ"));
}

TEST_F(Settings, VariablesOfBuildAndBenchmarksAreNoMistakes) {
  set("THESEUS_LIB_DIR", "lib");
  set("THESEUS_BENCH_ANYTHING", "1");
  set("THESEUS_LIB_DIRS", "lib");
  EXPECT_FALSE(warned("THESEUS_LIB_DIR "));
  EXPECT_FALSE(warned("THESEUS_BENCH_ANYTHING"));
  EXPECT_TRUE(warned("THESEUS_LIB_DIRS "));
}

TEST_F(Settings, FilesCountBelowTheEnvironment) {
  std::string path = testing::TempDir() + "theseus-conf-XXXXXX";
  close(mkstemp(path.data()));
  std::ofstream(path) << "# comment\nTHESEUS_SLOTS = 32  # here too\n\nNCCL_ALGO=ring\nnonsense\n=5\n";
  set("NCCL_CONF_FILE", path);
  EXPECT_EQ(settings::slots(), 32);
  EXPECT_EQ(settings::algo(), "ring");
  EXPECT_EQ(described("THESEUS_SLOTS").source, "file");
  set("THESEUS_SLOTS", "16");
  EXPECT_EQ(settings::slots(), 16);
  unlink(path.c_str());
  set("NCCL_CONF_FILE", path);
  EXPECT_TRUE(warned(path));
}

TEST_F(Settings, EveryRowIsDocumentedOnce) {
  std::set<std::string> seen;
  for (const auto& setting : describe_settings()) {
    EXPECT_TRUE(seen.insert(setting.name).second) << setting.name;
    EXPECT_GT(setting.documentation.size(), 10u) << setting.name;
  }
  EXPECT_GT(seen.size(), 20u);
}

TEST(Rates, UnitsOfBitsAndBytes) {
  EXPECT_EQ(parse_rate("200Mbit").value(), 25e6);
  EXPECT_EQ(parse_rate("1Gbit").value(), 125e6);
  EXPECT_EQ(parse_rate("25MB").value(), 25e6);
  EXPECT_EQ(parse_rate("1.5 GB/s").value(), 1.5e9);
  EXPECT_EQ(parse_rate("4096").value(), 4096);
  EXPECT_EQ(parse_rate("0").value(), 0);
  for (const char* bad : {"", "Mbit", "-1", "1 furlong", "inf"}) EXPECT_FALSE(parse_rate(bad).ok()) << bad;
}

TEST(Sizes, UnitsOf1024) {
  EXPECT_EQ(parse_size("64K").value(), 65536);
  EXPECT_EQ(parse_size("1MB").value(), 1 << 20);
  EXPECT_EQ(parse_size("0x1000").value(), 4096);
  EXPECT_EQ(parse_size("0").value(), 0);
  for (const char* bad : {"", "K", "-1", "1T", "9223372036854775807K", "0x"}) EXPECT_FALSE(parse_size(bad).ok()) << bad;
}

}  // namespace
}  // namespace theseus
