// What the real driver does without a GPU: say what is missing, and keep other people's contexts as they are.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "drivers/cuda/emu_process.h"
#include "drivers/cuda/real_driver.h"
#include "unit/drivers/driver_testing.h"
#include "unit/drivers/fake_cuda.h"

namespace theseus::cuda {
namespace {

// A library that the system's compiler makes of C++ text, for loading.
class Libraries : public testing::Test {
 protected:
  void SetUp() override {
    if (find_program("c++").empty()) GTEST_SKIP() << "there is no C++ compiler to make a library with";
    char pattern[] = "/tmp/theseus-test-XXXXXX";
    folder_ = mkdtemp(pattern);
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  std::string refusal(const std::string& text) {
    std::ofstream(folder_ + "/libcuda.cc") << "extern \"C\" {" << text << "}";
    const std::string library = folder_ + "/libcuda" + std::to_string(++made_) + ".so";
    Result<ProcessEnd> end =
        run_program({find_program("c++"), "-shared", "-fPIC", "libcuda.cc", "-o", library}, folder_);
    EXPECT_TRUE(end.ok() && end->succeeded) << (end.ok() ? end->output : end.status().message());
    const Status refused = open_real_driver(library).status();
    EXPECT_EQ(refused.code(), Code::UnhandledCudaError);
    EXPECT_NE(refused.message().find("THESEUS_DEVICE=host"), std::string::npos) << refused.message();
    return refused.message();
  }

 private:
  std::string folder_;
  int made_ = 0;
};

TEST_F(Libraries, WhatIsWrongWithADriverIsNamed) {
  const std::string version = "int cuDriverGetVersion(int* v) { *v = 12040; return 0; }";
  EXPECT_NE(refusal("int nothing;").find("no CUDA driver"), std::string::npos);
  EXPECT_NE(refusal("int cuDriverGetVersion(int* v) { *v = 10020; return 0; } int cuInit(unsigned) { return 0; }")
                .find("supports CUDA 10.2"),
            std::string::npos);
  EXPECT_NE(refusal(version + "int cuInit(unsigned) { return 100; }").find("no NVIDIA GPU is visible"),
            std::string::npos);
  EXPECT_NE(refusal(version + "int cuInit(unsigned) { return 34; }").find("stub"), std::string::npos);
  EXPECT_NE(refusal(version + "int cuInit(unsigned) { return 803; }").find("803"), std::string::npos);
  const std::string words = R"(
int cuGetErrorName(int, const char** t) { *t = "CUDA_ERROR_FAKE"; return 0; }
int cuGetErrorString(int, const char** t) { *t = "fake text"; return 0; })";
  EXPECT_NE(refusal(version + words + "int cuInit(unsigned) { return 803; }").find("fake text (CUDA_ERROR_FAKE, 803)"),
            std::string::npos);
  EXPECT_NE(refusal(version + words + "int cuInit(unsigned) { return 0; }").find("has no cuDeviceGetCount"),
            std::string::npos);
}

TEST(RealDriver, AMissingDriverIsNamed) {
  const Status refused = open_real_driver("libcuda-that-is-not-there.so.1").status();
  EXPECT_EQ(refused.code(), Code::UnhandledCudaError);
  EXPECT_NE(refused.message().find("no NVIDIA driver"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("libcuda-that-is-not-there.so.1"), std::string::npos) << refused.message();
}

class OverFakeCuda : public testing::Test {
 protected:
  OverFakeCuda() : driver(fake::table(), fake::device().device_count()) {}
  RealDriver driver;
};

// A context costs hundreds of megabytes of a GPU: only devices that are used get one, and give it back.
TEST_F(OverFakeCuda, ContextsAreMadeForUsedDevicesAlone) {
  const auto retained = [] { return std::vector<int>(fake::retained, fake::retained + fake::device().device_count()); };
  const std::vector<int> before = retained();
  {
    RealDriver other(fake::table(), fake::device().device_count());
    take(other.device_info(1));
    take(other.can_access_peer(0, 1));
    take(other.pointer_info(&other));
    EXPECT_EQ(retained(), before);
    expect_ok(other.release(2, take(other.allocate(2, 100))));
    expect_ok(other.release(2, take(other.allocate(2, 100))));
    std::vector<int> after = before;
    ++after[2];
    EXPECT_EQ(retained(), after);
  }
  EXPECT_EQ(retained(), before);
}

TEST_F(OverFakeCuda, CallsLeaveContextAndCaptureModeAsTheyWere) {
  std::thread([&] {
    EXPECT_EQ(take(driver.current_device()), 0);
    void* memory = take(driver.allocate(1, 100));
    EXPECT_FALSE(driver.allocate(1, size_t{1} << 40).ok());
    EXPECT_FALSE(driver.destroy_event(1, Event()).ok());
    EXPECT_TRUE(fake::stack.empty());
    EXPECT_EQ(fake::capture_mode, 0);
    expect_ok(driver.set_current_device(3));
    expect_ok(driver.release(1, memory));
    EXPECT_EQ(take(driver.current_device()), 3);
    EXPECT_EQ(fake::stack.size(), 1u);
  }).join();
}

// The library's own threads have no context; the pointers that they are asked about are the user's all the same.
TEST_F(OverFakeCuda, PointersAreKnownOnThreadsWithoutContext) {
  void* memory = take(driver.allocate(1, 100));
  std::thread([&] { EXPECT_EQ(take(driver.pointer_info(memory)).kind, PointerKind::Device); }).join();
  expect_ok(driver.release(1, memory));
}

TEST_F(OverFakeCuda, RefusedPeersAreNamed) {
  expect_ok(driver.enable_peer(0, 1));
  expect_ok(driver.enable_peer(1, 1));
  fake::device().faults().refuse_peers(2, 3);
  const Status refused = driver.enable_peer(2, 3);
  EXPECT_EQ(refused.code(), Code::UnhandledCudaError);
  for (const char* word : {"peer access refused", "device 2", "device 3", "nvidia-smi topo", "THESEUS_FALLBACK"})
    EXPECT_NE(refused.message().find(word), std::string::npos) << refused.message();
}

// What another NVRTC made, or a driver that is older than it thinks, shows when the kernel is loaded.
TEST_F(OverFakeCuda, AKernelOfAnotherCudaIsNamed) {
  static CUresult answer = kCudaSuccess;
  DriverTable table = fake::table();
  table.cuModuleLoadData = [](CUmodule*, const void*) { return answer; };
  RealDriver other(table, 1);
  const std::string text = ".version 99.0";
  const KernelImage image(text.c_str(), text.c_str() + text.size() + 1);
  for (const CUresult wrong : {kCudaUnsupportedPtx, kCudaNoBinaryForGpu}) {
    answer = wrong;
    const Status refused = other.load(0, image).status();
    EXPECT_EQ(refused.code(), Code::UnhandledCudaError);
    for (const char* word : {"device 0", "NVRTC", "driver's 12", "THESEUS_NVRTC"})
      EXPECT_NE(refused.message().find(word), std::string::npos) << refused.message();
  }
}

TEST_F(OverFakeCuda, OutOfMemoryIsNamed) {
  const Status refused = driver.allocate(1, size_t{1} << 40).status();
  EXPECT_EQ(refused.code(), Code::UnhandledCudaError);
  for (const char* word : {"out of memory", "1099511627776 bytes", "device 1", "1000 of", "nvidia-smi"})
    EXPECT_NE(refused.message().find(word), std::string::npos) << refused.message();
}

TEST_F(OverFakeCuda, CapturesAreSeen) {
  const Stream on = take(driver.create_stream(0, Driver::Priority::High));
  expect_ok(fake::device().begin_capture(0, on));
  EXPECT_EQ(take(driver.capture(0, on)).state, Capture::State::Active);
  EXPECT_NE(take(driver.capture(0, on)).id, 0u);
  EXPECT_FALSE(driver.synchronize(0, on).ok());
  EXPECT_EQ(take(driver.capture(0, on)).state, Capture::State::Invalidated);
  EXPECT_FALSE(fake::device().end_capture(0, on).ok());
  expect_ok(driver.destroy_stream(0, on));
}

// The driver is given no length: what would make it read past the end is refused before it is asked.
TEST_F(OverFakeCuda, ImagesThatAreCutAreRefused) {
  KernelImage elf(64, 0);
  std::memcpy(elf.data(),
              "\x7f"
              "ELF",
              4);
  elf[18] = 190;                                             // for CUDA
  elf[40] = 64;                                              // sections start at the end,
  elf[58] = 64;                                              // 64 bytes each,
  elf[60] = 1;                                               // one of them
  KernelImage text{'.', 'v', 'e', 'r', 's', 'i', 'o', 'n'};  // no end
  for (const KernelImage& image : {elf, text, KernelImage(10, 0), KernelImage()})
    EXPECT_EQ(driver.load(0, image).status().code(), Code::InvalidArgument);
}

}  // namespace
}  // namespace theseus::cuda
