// The tests of this folder run on emulated GPUs. Settings are read once a process, so this comes first.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

int main(int argc, char** argv) {
  setenv("THESEUS_DEVICE", "cuda-emu", /*overwrite=*/0);
  // Compiling a kernel takes seconds: what one run compiled, the next one finds beside the program.
  const auto kernels = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "kernels";
  setenv("THESEUS_KERNEL_CACHE", kernels.c_str(), /*overwrite=*/0);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
