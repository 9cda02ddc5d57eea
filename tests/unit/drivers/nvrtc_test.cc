// NVRTC needs no GPU: what it makes can be looked at where a copy of it is found (THESEUS_NVRTC names one).
#include <cstdlib>
#include <cstring>

#include "base/env.h"
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

TEST(NvrtcSearch, AWrongPathIsNamed) {
  const char* before = std::getenv("THESEUS_NVRTC");
  const std::string kept = before == nullptr ? "" : before;
  setenv("THESEUS_NVRTC", "/no/such/libnvrtc.so.12", 1);
  reload_settings();
  const Status refused = NvrtcCompiler::find(12040).status();
  setenv("THESEUS_NVRTC", kept.c_str(), 1);
  reload_settings();
  EXPECT_EQ(refused.code(), Code::UnhandledCudaError);
  EXPECT_NE(refused.message().find("THESEUS_NVRTC"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("/no/such/libnvrtc.so.12"), std::string::npos) << refused.message();
}

}  // namespace
}  // namespace theseus::cuda
