// Kernels: compiled once, found on disk by the next process, and generated ones that take over.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "executor/cuda_kernels.h"
#include "gpu_ranks.h"

namespace theseus {
namespace {

using testing::driver;

// What one instance compiled, the next one finds, as another process would.
TEST(GpuKernels, AreCompiledOnce) {
  char folder[] = "/tmp/theseus-kernels-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  Result<cuda::DeviceInfo> device = driver().device_info(0);
  ASSERT_TRUE(device.ok()) << device.status().message();
  {
    CudaKernels kernels(driver(), *device, KernelFiles(folder));
    for (int again = 0; again < 2; ++again) {
      Result<const CudaKernel*> division = kernels.division(DataType::Int32);
      ASSERT_TRUE(division.ok()) << division.status().message();
      EXPECT_GT((*division)->resident, 0u);
    }
    EXPECT_EQ(kernels.compiled(), 1u);
  }
  CudaKernels others(driver(), *device, KernelFiles(folder));
  EXPECT_TRUE(others.division(DataType::Int32).ok());
  EXPECT_EQ(others.compiled(), 0u);
  std::filesystem::remove_all(folder);
}

// Nobody waits for a generated kernel: it is null until it is there. One that does not compile never comes.
TEST(GpuKernels, GeneratedOnesComeWhenTheyAreReady) {
  Result<cuda::DeviceInfo> device = driver().device_info(0);
  ASSERT_TRUE(device.ok()) << device.status().message();
  CudaKernels kernels(driver(), *device, KernelFiles(""));
  const auto good = kernels.generate("good", [] { return division_text(DataType::Int64); });
  const auto bad = kernels.generate("bad", [] {
    KernelText text = division_text(DataType::Int64);
    text.text = "this is no C++";
    return text;
  });
  EXPECT_EQ(kernels.generate("good", [] { return KernelText{}; }), good);
  kernels.settle();
  ASSERT_NE(good->get(), nullptr);
  EXPECT_NE(good->get()->function, nullptr);
  EXPECT_EQ(bad->get(), nullptr);
}

}  // namespace
}  // namespace theseus
