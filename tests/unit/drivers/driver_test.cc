// THESEUS_DEVICE chooses the driver, once in a process: each case runs in a process of its own.
#include <cstdlib>

#include "base/env.h"
#include "unit/drivers/driver_testing.h"

namespace theseus::cuda {
namespace {

enum Outcome { kRefused = 10, kNone = 11, kEmulator = 12, kReal = 13, kChanged = 14 };

// Exits with what driver() gave.
[[noreturn]] void choose(const char* device) {
  setenv("THESEUS_DEVICE", device, 1);
  reload_settings();
  const Result<Driver*> chosen = driver();
  setenv("THESEUS_DEVICE", "host", 1);
  reload_settings();
  const Result<Driver*> again = driver();
  if (again.ok() != chosen.ok() || (chosen.ok() && *again != *chosen)) std::_Exit(kChanged);
  if (!chosen) std::_Exit(kRefused);
  if (*chosen == nullptr) std::_Exit(kNone);
  std::_Exit((*chosen)->emulated() ? kEmulator : kReal);
}

TEST(DriverChoice, TheSettingChoosesOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::string why;
  const bool real = test_driver("real", &why) != nullptr;
  EXPECT_EXIT(choose("host"), testing::ExitedWithCode(kNone), "");
  EXPECT_EXIT(choose("cuda-emu"), testing::ExitedWithCode(kEmulator), "");
  EXPECT_EXIT(choose("cuda"), testing::ExitedWithCode(real ? kReal : kRefused), "");
  EXPECT_EXIT(choose("auto"), testing::ExitedWithCode(real ? kReal : kNone), "");
  EXPECT_EXIT(choose("nonsense"), testing::ExitedWithCode(real ? kReal : kNone), "");
}

}  // namespace
}  // namespace theseus::cuda
