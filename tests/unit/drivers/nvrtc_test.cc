// NVRTC needs no GPU: what it makes can be looked at where a copy of it is found (THESEUS_NVRTC names one).
#include <cstdlib>
#include <cstring>

#include "base/env.h"
#include "drivers/cuda/emu_process.h"
#include "drivers/cuda/nvrtc.h"
#include "unit/drivers/driver_testing.h"

namespace theseus::cuda {
namespace {

constexpr int kDriverVersion13 = 13000;

const char* const kKernel = R"(
#include "test/scale.h"
struct Parameters { float* out; float factor; };
extern "C" __global__ void scale(const Parameters p) { p.out[threadIdx.x] = scaled(p.out[threadIdx.x], p.factor); }
)";
const SourceText kHeader{"test/scale.h",
                         "__device__ inline float scaled(float x, float factor) { return x * factor + 1; }\n"};

DeviceInfo device(int sm) {
  DeviceInfo info;
  info.name = "test device";
  info.sm = sm;
  return info;
}

class Nvrtc : public testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<NvrtcCompiler>> found = NvrtcCompiler::find(kDriverVersion13);
    if (!found) GTEST_SKIP() << found.status().message();
    compiler_ = std::move(*found);
  }
  std::unique_ptr<NvrtcCompiler> compiler_;
};

TEST_F(Nvrtc, MakesACubinForEachArchitecture) {
  for (const int sm : {80, 90, 100}) {
    const KernelImage image = take(compiler_->compile({"scale.cu", kKernel, {kHeader}, {}}, device(sm)));
    ASSERT_GT(image.size(), 64u);
    EXPECT_EQ(std::memcmp(image.data(),
                          "\x7f"
                          "ELF",
                          4),
              0);
    EXPECT_EQ(image[18], 190);  // for CUDA
    EXPECT_NE(std::string(image.begin(), image.end()).find("scale"), std::string::npos);
  }
}

// A GPU that is newer than NVRTC gets PTX, which its driver compiles.
TEST_F(Nvrtc, MakesPtxForDevicesThatItDoesNotKnow) {
  const KernelImage image = take(compiler_->compile({"scale.cu", kKernel, {kHeader}, {}}, device(999)));
  const std::string text(image.begin(), image.end());
  EXPECT_NE(text.find(".visible .entry scale"), std::string::npos);
  EXPECT_EQ(text.back(), '\0');
}

TEST_F(Nvrtc, RefusesDevicesThatAreTooOld) {
  EXPECT_EQ(compiler_->compile({"scale.cu", kKernel, {kHeader}, {}}, device(20)).status().code(),
            Code::UnhandledCudaError);
}

TEST_F(Nvrtc, WrongTextIsRefusedWithFileAndLine) {
  const Status refused = compiler_->compile({"wrong.cu", "\n\nnonsense;", {}, {}}, device(90)).status();
  EXPECT_EQ(refused.code(), Code::InvalidArgument);
  EXPECT_NE(refused.message().find("wrong.cu(3)"), std::string::npos) << refused.message();
  const Status option = compiler_->compile({"a.cu", "", {}, {"--no-such-option"}}, device(90)).status();
  EXPECT_EQ(option.code(), Code::InvalidArgument);
}

// Products and sums are rounded one by one, as on the host.
TEST_F(Nvrtc, DoesNotFuseMultiplyAndAdd) {
  const KernelImage image = take(compiler_->compile({"scale.cu", kKernel, {kHeader}, {}}, device(999)));
  const std::string text(image.begin(), image.end());
  EXPECT_NE(text.find("mul.rn.f32"), std::string::npos) << text;
  EXPECT_EQ(text.find("fma"), std::string::npos) << text;
}

TEST_F(Nvrtc, ItsIdentityTellsArchitectures) {
  EXPECT_EQ(compiler_->identity(device(90)), compiler_->identity(device(90)));
  EXPECT_NE(compiler_->identity(device(90)), compiler_->identity(device(80)));
}

// Sets THESEUS_NVRTC for as long as it lives.
class Named {
 public:
  explicit Named(const std::string& path) {
    const char* before = std::getenv("THESEUS_NVRTC");
    kept_ = before == nullptr ? "" : before;
    set(path);
  }
  ~Named() { set(kept_); }
  Named(const Named&) = delete;
  Named& operator=(const Named&) = delete;

 private:
  static void set(const std::string& path) {
    setenv("THESEUS_NVRTC", path.c_str(), 1);
    reload_settings();
  }
  std::string kept_;
};

// An NVRTC that compiles nothing, made by the system's compiler: for machines without one, and for those that have the
// right one.
class FakeNvrtc : public testing::Test {
 protected:
  void SetUp() override {
    if (find_program("c++").empty()) GTEST_SKIP() << "there is no C++ compiler to make a library with";
    Result<TemporaryFolder> folder = TemporaryFolder::make();
    ASSERT_TRUE(folder.ok()) << folder.status().message();
    folder_ = std::make_unique<TemporaryFolder>(std::move(*folder));
  }

  // Knows the architectures from `oldest` to sm_100. Without what CUDA 11.2 brought where it is `old`.
  std::string library(int oldest, bool old = false) {
    std::string text = R"(extern "C" {
int nvrtcVersion(int* major, int* minor) { return *major = 12, *minor = 4, 0; }
const char* nvrtcGetErrorString(int) { return "fake"; }
int nvrtcCreateProgram() { return 1; }
int nvrtcDestroyProgram() { return 0; }
int nvrtcCompileProgram() { return 0; }
int nvrtcGetProgramLogSize() { return 1; }
int nvrtcGetProgramLog() { return 1; }
int nvrtcGetPTXSize() { return 1; }
int nvrtcGetPTX() { return 1; }
)";
    if (!old) {
      text += "int nvrtcGetCUBINSize() { return 1; } int nvrtcGetCUBIN() { return 1; }\n";
      text += "int nvrtcGetNumSupportedArchs(int* n) { return *n = 2, 0; }\n";
      text +=
          "int nvrtcGetSupportedArchs(int* all) { return all[0] = " + std::to_string(oldest) + ", all[1] = 100, 0; }";
    }
    expect_ok(folder_->write("nvrtc.cc", text + "}"));
    const std::string path = folder_->path() + "/libnvrtc.so.12";
    Result<ProcessEnd> end =
        run_program({find_program("c++"), "-shared", "-fPIC", "nvrtc.cc", "-o", path}, folder_->path());
    EXPECT_TRUE(end.ok() && end->succeeded) << (end.ok() ? end->output : end.status().message());
    return path;
  }

  std::unique_ptr<TemporaryFolder> folder_;
};

TEST_F(FakeNvrtc, OneThatIsTooOldIsNamed) {
  const std::string path = library(80, /*old=*/true);
  const Named named(path);
  const Status refused = NvrtcCompiler::find(12040).status();
  EXPECT_EQ(refused.code(), Code::UnhandledCudaError);
  for (const std::string& word : {std::string("THESEUS_NVRTC"), path, std::string("older than CUDA 11.2")})
    EXPECT_NE(refused.message().find(word), std::string::npos) << refused.message();
}

TEST_F(FakeNvrtc, OneThatNoLongerKnowsTheDeviceIsNamed) {
  const std::string path = library(90);
  const Named named(path);
  const std::unique_ptr<NvrtcCompiler> compiler = take(NvrtcCompiler::find(12040));
  ASSERT_NE(compiler, nullptr);
  const Status refused = compiler->compile({"scale.cu", kKernel, {kHeader}, {}}, device(80)).status();
  EXPECT_EQ(refused.code(), Code::UnhandledCudaError);
  for (const std::string& word : {std::string("sm_80"), path, std::string("sm_90"), std::string("THESEUS_NVRTC")})
    EXPECT_NE(refused.message().find(word), std::string::npos) << refused.message();
}

TEST(NvrtcSearch, NoneIsNamed) {
  const Status refused = NvrtcCompiler::none(12040);
  EXPECT_EQ(refused.code(), Code::UnhandledCudaError);
  for (const char* word : {"NVRTC", "pip install nvidia-cuda-nvrtc-cu12)", "THESEUS_NVRTC"})
    EXPECT_NE(refused.message().find(word), std::string::npos) << refused.message();
  EXPECT_NE(NvrtcCompiler::none(13000).message().find("pip install nvidia-cuda-nvrtc)"), std::string::npos);
  const Named named("");
  const Result<std::unique_ptr<NvrtcCompiler>> found = NvrtcCompiler::find(12040);
  if (!found.ok()) EXPECT_EQ(found.status().message(), refused.message());
}

TEST(NvrtcSearch, AWrongPathIsNamed) {
  const Named named("/no/such/libnvrtc.so.12");
  const Status refused = NvrtcCompiler::find(12040).status();
  EXPECT_EQ(refused.code(), Code::UnhandledCudaError);
  EXPECT_NE(refused.message().find("THESEUS_NVRTC"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("/no/such/libnvrtc.so.12"), std::string::npos) << refused.message();
}

}  // namespace
}  // namespace theseus::cuda
