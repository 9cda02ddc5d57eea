// What every driver and its compiler promise about kernels.
#include <cstddef>

#include "unit/drivers/driver_testing.h"

namespace theseus::cuda {
namespace {

// The words that one text needs on both sides; the library's own are in device/.
const char* const kWords = R"(
#pragma once
#if defined(__CUDACC__)
#define THESEUS_KERNEL(name, Parameters, parameters) extern "C" __global__ void name(const Parameters parameters)
#define THESEUS_SHARED(Type, name) __shared__ Type name
#define THESEUS_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#define THESEUS_PAUSE() __nanosleep(100)
__device__ inline unsigned acquire(const unsigned* word) {
  unsigned value;
  asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
__device__ inline void release(unsigned* word, unsigned value) {
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
#else
#include "drivers/cuda/emu_device.h"
inline unsigned acquire(const unsigned* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
inline void release(unsigned* word, unsigned value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
#endif
)";

class KernelContract : public OnEachDriver {
 protected:
  void SetUp() override {
    OnEachDriver::SetUp();
    if (IsSkipped()) return;
    info_ = take(driver().device_info(0));
    Result<KernelCompiler*> compiler = driver().compiler();
    if (!compiler) GTEST_SKIP() << compiler.status().message();
    compiler_ = *compiler;
  }

  static KernelSource source(const std::string& text) {
    return {"test.cu", "#include \"test/words.h\"\n#line 1 \"test.cu\"\n" + text, {{"test/words.h", kWords}}, {}};
  }

  Function kernel(const std::string& text, const std::string& name) {
    module_ = take(driver().load(0, take(compiler_->compile(source(text), info_))));
    return take(driver().function(0, module_, name));
  }

  template <class Parameters>
  static Launch launch_of(Function function, uint32_t grid, uint32_t block, const Parameters& parameters) {
    Launch launch;
    launch.function = function;
    launch.grid = grid;
    launch.block = block;
    launch.parameters = &parameters;
    launch.parameter_bytes = sizeof parameters;
    return launch;
  }

  void TearDown() override {
    if (module_ != nullptr) expect_ok(driver().unload(0, module_));
    OnEachDriver::TearDown();
  }

  DeviceInfo info_;
  KernelCompiler* compiler_ = nullptr;
  Module module_ = nullptr;
};
ON_DRIVERS(KernelContract, "emulator", "real");

struct Out {
  unsigned* out;
};

TEST_P(KernelContract, EveryThreadOfTheGridRunsOnce) {
  const Function function = kernel(R"(
struct Out { unsigned* out; };
THESEUS_KERNEL(number, Out, p) {
  const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
  p.out[index] += index + 1000 * gridDim.x;
})",
                                   "number");
  for (const auto& [grid, block] : {std::pair{1u, 1u}, {1u, 7u}, {5u, 1u}, {4u, 33u}}) {
    unsigned* out = device_memory<unsigned>(grid * block);
    to_device(out, std::vector<unsigned>(grid * block, 5));
    expect_ok(driver().launch(0, launch_of(function, grid, block, Out{out})));
    const std::vector<unsigned> values = from_device(out, grid * block);
    for (unsigned i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], 5 + i + 1000 * grid) << grid << "x" << block;
  }
}

TEST_P(KernelContract, ParametersAreCopiedAtTheLaunch) {
  const Function function = kernel(R"(
struct Wide { unsigned* out; unsigned value; char rest[1000]; };
THESEUS_KERNEL(store, Wide, p) { *p.out = p.value + p.rest[999]; })",
                                   "store");
  struct Wide {
    unsigned* out;
    unsigned value;
    char rest[1000];
  } parameters{device_memory<unsigned>(1), 40, {}};
  parameters.rest[999] = 2;
  const Stream on = take(driver().create_stream(0));
  Gate gate;
  expect_ok(driver().call_host(0, on, &Gate::wait, &gate));
  Launch launch = launch_of(function, 1, 1, parameters);
  launch.stream = on;
  expect_ok(driver().launch(0, launch));
  const unsigned* out = parameters.out;
  std::memset(&parameters, 0, sizeof parameters);
  gate.open();
  expect_ok(driver().synchronize(0, on));
  EXPECT_EQ(from_device(out, 1)[0], 42u);
  expect_ok(driver().destroy_stream(0, on));
}

// A sum through static and dynamic shared memory: wrong without barriers, or with memory shared between TBs.
TEST_P(KernelContract, ThreadsOfATbShareMemoryAndMeetAtBarriers) {
  const Function function = kernel(R"(
struct Out { unsigned* out; };
struct Table { unsigned words[64]; };
THESEUS_KERNEL(sums, Out, p) {
  THESEUS_SHARED(Table, table);
  THESEUS_DYNAMIC_SHARED(bytes);
  unsigned* dynamic = (unsigned*)bytes;
  for (unsigned round = 0; round < 20; ++round) {
    table.words[threadIdx.x] = threadIdx.x + round + blockIdx.x;
    __syncthreads();
    unsigned sum = 0;
    for (unsigned i = 0; i < blockDim.x; ++i) sum += table.words[i];
    dynamic[threadIdx.x] = sum;
    __syncthreads();
    p.out[(blockIdx.x * 20 + round) * blockDim.x + threadIdx.x] = dynamic[blockDim.x - 1 - threadIdx.x];
  }
})",
                                   "sums");
  constexpr unsigned grid = 3, block = 8;
  unsigned* out = device_memory<unsigned>(grid * 20 * block);
  Launch launch = launch_of(function, grid, block, Out{out});
  Out parameters{out};
  launch.parameters = &parameters;
  launch.shared_bytes = block * sizeof(unsigned);
  expect_ok(driver().launch(0, launch));
  const std::vector<unsigned> values = from_device(out, grid * 20 * block);
  for (unsigned i = 0; i < values.size(); ++i)
    ASSERT_EQ(values[i], 28 + block * (i / block % 20 + i / block / 20)) << i;
}

TEST_P(KernelContract, WarpsExchangeValues) {
  const Function function = kernel(R"(
struct Out { unsigned* out; };
THESEUS_KERNEL(exchange, Out, p) {
  const unsigned lane = threadIdx.x % 32;
  unsigned* out = p.out + threadIdx.x * 5;
  out[0] = __shfl_sync(0xffffffffu, threadIdx.x * 3, 5);
  out[1] = __shfl_xor_sync(0xffffffffu, threadIdx.x, 1);
  out[2] = __ballot_sync(0xffffffffu, lane % 3 == 0);
  out[3] = __any_sync(0xffffffffu, threadIdx.x == 40);
  out[4] = __all_sync(0xffffffffu, threadIdx.x < 32);
})",
                                   "exchange");
  unsigned* out = device_memory<unsigned>(64 * 5);
  expect_ok(driver().launch(0, launch_of(function, 1, 64, Out{out})));
  const std::vector<unsigned> values = from_device(out, 64 * 5);
  for (unsigned thread = 0; thread < 64; ++thread) {
    EXPECT_EQ(values[thread * 5], (thread / 32 * 32 + 5) * 3);
    EXPECT_EQ(values[thread * 5 + 1], thread ^ 1);
    EXPECT_EQ(values[thread * 5 + 2], 0x49249249u);
    EXPECT_EQ(values[thread * 5 + 3], thread / 32);
    EXPECT_EQ(values[thread * 5 + 4], thread < 32 ? 1u : 0u);
  }
}

// A ring of TBs, each waiting for the one before: ends only where all run at once.
TEST_P(KernelContract, TbsOfACooperativeLaunchWaitForEachOther) {
  if (!info_.cooperative) GTEST_SKIP() << info_.name << " has no cooperative launches";
  const Function function = kernel(R"(
struct Out { unsigned* out; };
THESEUS_KERNEL(ring, Out, p) {
  for (unsigned round = 1; round <= 10; ++round) {
    if (blockIdx.x == 0) {
      release(&p.out[0], round);
      while (acquire(&p.out[gridDim.x - 1]) < round) THESEUS_PAUSE();
    } else {
      while (acquire(&p.out[blockIdx.x - 1]) < round) THESEUS_PAUSE();
      release(&p.out[blockIdx.x], round);
    }
  }
})",
                                   "ring");
  unsigned* out = device_memory<unsigned>(8);
  to_device(out, std::vector<unsigned>(8, 0));
  const Out parameters{out};
  Launch launch = launch_of(function, 8, 1, parameters);
  launch.cooperative = true;
  expect_ok(driver().launch(0, launch));
  EXPECT_EQ(from_device(out, 8), std::vector<unsigned>(8, 10));
}

// Flags in pinned memory go both ways while a kernel runs.
TEST_P(KernelContract, HostAndKernelTalkThroughPinnedMemory) {
  const Function function = kernel(R"(
struct Out { unsigned* out; };
THESEUS_KERNEL(answer, Out, p) {
  while (acquire(&p.out[0]) == 0) THESEUS_PAUSE();
  release(&p.out[1], p.out[2] + 1);
})",
                                   "answer");
  auto* flags = static_cast<unsigned*>(take(driver().allocate_pinned(3 * sizeof(unsigned))));
  std::memset(flags, 0, 3 * sizeof(unsigned));
  const Stream on = take(driver().create_stream(0));
  const Out parameters{static_cast<unsigned*>(take(driver().device_address(0, flags)))};
  Launch launch = launch_of(function, 1, 1, parameters);
  launch.stream = on;
  expect_ok(driver().launch(0, launch));
  flags[2] = 41;
  __atomic_store_n(&flags[0], 1u, __ATOMIC_RELEASE);
  while (__atomic_load_n(&flags[1], __ATOMIC_ACQUIRE) == 0) {
  }
  EXPECT_EQ(flags[1], 42u);
  expect_ok(driver().synchronize(0, on));
  expect_ok(driver().destroy_stream(0, on));
  expect_ok(driver().release_pinned(flags));
}

TEST_P(KernelContract, WrongLaunchesAreRefused) {
  const Function function = kernel(R"(
struct Out { unsigned* out; };
THESEUS_KERNEL(store, Out, p) { *p.out = 1; })",
                                   "store");
  const Out parameters{device_memory<unsigned>(1)};
  EXPECT_FALSE(driver().launch(0, launch_of(function, 0, 1, parameters)).ok());
  EXPECT_FALSE(driver().launch(0, launch_of(function, 1, 0, parameters)).ok());
  EXPECT_FALSE(driver().launch(0, launch_of(function, 1, 100000, parameters)).ok());
  Launch greedy = launch_of(function, 1, 1, parameters);
  greedy.shared_bytes = 64 << 20;
  EXPECT_FALSE(driver().launch(0, greedy).ok());
  const struct {
    char bytes[kMaxParameterBytes + 1];
  } wide{};
  EXPECT_FALSE(driver().launch(0, launch_of(function, 1, 1, wide)).ok());
}

TEST_P(KernelContract, FunctionsAreDescribed) {
  const Function function = kernel(R"(
struct Out { unsigned* out; };
THESEUS_KERNEL(store, Out, p) { *p.out = 1; })",
                                   "store");
  EXPECT_GE(take(driver().function_info(0, function)).max_threads, 1);
  EXPECT_GE(take(driver().occupancy(0, function, 1, 0)), 1);
  expect_ok(driver().set_dynamic_shared(0, function, info_.max_shared_bytes));
  EXPECT_FALSE(driver().set_dynamic_shared(0, function, 1 << 30).ok());
  EXPECT_EQ(driver().function(0, module_, "missing").status().code(), Code::InvalidArgument);
}

TEST_P(KernelContract, WrongTextIsRefusedWithItsLine) {
  const Status refused = compiler_->compile(source("\n\nthis is no C++"), info_).status();
  EXPECT_EQ(refused.code(), Code::InvalidArgument);
  EXPECT_NE(refused.message().find("test.cu"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find('3'), std::string::npos) << refused.message();
}

TEST_P(KernelContract, OptionsReachTheCompiler) {
  KernelSource text = source(R"(
struct Out { unsigned* out; };
THESEUS_KERNEL(store, Out, p) { *p.out = ANSWER; })");
  EXPECT_FALSE(compiler_->compile(text, info_).ok());
  text.options = {"-DANSWER=42"};
  EXPECT_TRUE(compiler_->compile(text, info_).ok());
}

TEST_P(KernelContract, GarbageIsNoModule) {
  EXPECT_FALSE(driver().load(0, KernelImage(1000, 7)).ok());
  EXPECT_FALSE(driver().load(0, KernelImage()).ok());
}

TEST_P(KernelContract, TheCompilersIdentityIsStable) {
  EXPECT_FALSE(compiler_->identity(info_).empty());
  EXPECT_EQ(compiler_->identity(info_), take(driver().compiler())->identity(info_));
}

// Two modules with one kernel name each: both stay what they are, also after the first one is gone.
TEST_P(KernelContract, ModulesDoNotMix) {
  const std::string text = R"(
struct Out { unsigned* out; };
THESEUS_KERNEL(store, Out, p) { *p.out = )";
  const Module first = take(driver().load(0, take(compiler_->compile(source(text + "1; }"), info_))));
  const Module second = take(driver().load(0, take(compiler_->compile(source(text + "2; }"), info_))));
  const Function one = take(driver().function(0, first, "store"));
  const Function two = take(driver().function(0, second, "store"));
  const Out parameters{device_memory<unsigned>(1)};
  expect_ok(driver().launch(0, launch_of(one, 1, 1, parameters)));
  EXPECT_EQ(from_device(parameters.out, 1)[0], 1u);
  expect_ok(driver().unload(0, first));
  const Module third = take(driver().load(0, take(compiler_->compile(source(text + "3; }"), info_))));
  expect_ok(driver().launch(0, launch_of(two, 1, 1, parameters)));
  EXPECT_EQ(from_device(parameters.out, 1)[0], 2u);
  expect_ok(driver().launch(0, launch_of(take(driver().function(0, third, "store")), 1, 1, parameters)));
  EXPECT_EQ(from_device(parameters.out, 1)[0], 3u);
  expect_ok(driver().unload(0, second));
  expect_ok(driver().unload(0, third));
}

}  // namespace
}  // namespace theseus::cuda
