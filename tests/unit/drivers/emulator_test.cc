// What the emulator adds to the contract of drivers: faults, captures, limits, and leaving nothing behind.
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "drivers/cuda/emu_process.h"
#include "unit/drivers/driver_testing.h"

namespace theseus::cuda {
namespace {

using namespace std::chrono_literals;

const char* const kStore = R"(
#include "drivers/cuda/emu_device.h"
struct Store { unsigned* out; unsigned value; };
THESEUS_KERNEL(store, Store, p) { p.out[blockIdx.x] = p.value; }
)";
struct Store {
  unsigned* out;
  unsigned value;
};

class EmulatorTest : public testing::Test {
 protected:
  static EmulatorOptions options() {
    EmulatorOptions options;
    options.devices = 3;
    options.memory_bytes = 1 << 20;
    options.max_threads = 4;
    return options;
  }

  Function store(int device = 0) {
    KernelCompiler* compiler = take(emulator.compiler());
    static const KernelImage image = take(compiler->compile({"store.cu", kStore, {}, {}}, DeviceInfo()));
    return take(emulator.function(device, take(emulator.load(device, image)), "store"));
  }

  Status launch(Function function, const Store& parameters, Stream stream = nullptr, int device = 0) {
    Launch launch;
    launch.function = function;
    launch.stream = stream;
    launch.parameters = &parameters;
    launch.parameter_bytes = sizeof parameters;
    return emulator.launch(device, launch);
  }

  unsigned* word(int device = 0) { return static_cast<unsigned*>(take(emulator.allocate(device, sizeof(unsigned)))); }

  Emulator emulator{options()};
};

TEST_F(EmulatorTest, MemoryOfADeviceIsLimitedAndComesBack) {
  void* half = take(emulator.allocate(0, 1 << 19));
  void* rest = take(emulator.allocate(0, 1 << 19));
  EXPECT_EQ(emulator.allocate(0, 1).status().code(), Code::UnhandledCudaError);
  take(emulator.allocate(1, 1 << 20));
  expect_ok(emulator.release(0, half));
  take(emulator.allocate(0, 1 << 19));
  expect_ok(emulator.release(0, rest));
}

TEST_F(EmulatorTest, NewMemoryIsNotZero) {
  const auto* memory = static_cast<uint8_t*>(take(emulator.allocate(0, 5000)));
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(memory[i], 0xCD);
}

TEST_F(EmulatorTest, MemoryIsReleasedAfterTheWorkOfItsDevice) {
  auto* memory = static_cast<uint8_t*>(take(emulator.allocate(0, 100)));
  const Stream on = take(emulator.create_stream(0));
  Gate gate;
  expect_ok(emulator.call_host(0, on, &Gate::wait, &gate));
  expect_ok(emulator.fill(0, memory, 1, 100, on));
  std::thread opener([&] {
    std::this_thread::sleep_for(20ms);
    gate.open();
  });
  expect_ok(emulator.release(0, memory));
  EXPECT_TRUE(take(emulator.query(0, on)));
  opener.join();
}

TEST_F(EmulatorTest, CopiesAndFillsStayInsideTheirMemory) {
  auto* memory = static_cast<uint8_t*>(take(emulator.allocate(0, 100)));
  std::vector<uint8_t> host(200);
  EXPECT_EQ(emulator.copy(0, memory + 50, host.data(), 51, nullptr).code(), Code::InvalidArgument);
  EXPECT_EQ(emulator.copy(0, host.data(), memory, 101, nullptr).code(), Code::InvalidArgument);
  EXPECT_EQ(emulator.fill(0, memory, 1, 101, nullptr).code(), Code::InvalidArgument);
  EXPECT_EQ(emulator.fill(0, host.data(), 1, 1, nullptr).code(), Code::InvalidArgument);
  expect_ok(emulator.copy(0, memory + 50, host.data(), 50, nullptr));
}

TEST_F(EmulatorTest, HandlesOfOthersAreRefused) {
  int foreign = 0;
  EXPECT_EQ(emulator.synchronize(0, reinterpret_cast<Stream>(&foreign)).code(), Code::InvalidArgument);
  EXPECT_EQ(emulator.query(0, reinterpret_cast<Event>(&foreign)).status().code(), Code::InvalidArgument);
  EXPECT_EQ(emulator.unload(0, reinterpret_cast<Module>(&foreign)).code(), Code::InvalidArgument);
  EXPECT_EQ(emulator.function_info(0, reinterpret_cast<Function>(&foreign)).status().code(), Code::InvalidArgument);
  const Stream on = take(emulator.create_stream(0));
  EXPECT_EQ(emulator.synchronize(1, on).code(), Code::InvalidArgument);
  expect_ok(emulator.destroy_stream(0, on));
  EXPECT_EQ(emulator.synchronize(0, on).code(), Code::InvalidArgument);
  EXPECT_EQ(emulator.destroy_stream(0, nullptr).code(), Code::InvalidArgument);
}

TEST_F(EmulatorTest, ParametersHaveTheKernelsSize) {
  const Function function = store();
  Launch launch;
  launch.function = function;
  Store parameters{word(), 1};
  launch.parameters = &parameters;
  launch.parameter_bytes = sizeof parameters - 1;
  const Status refused = emulator.launch(0, launch);
  EXPECT_EQ(refused.code(), Code::InvalidArgument);
  EXPECT_NE(refused.message().find("'store'"), std::string::npos) << refused.message();
}

TEST_F(EmulatorTest, QueuedKernelsKeepTheirModule) {
  KernelCompiler* compiler = take(emulator.compiler());
  const Module module = take(emulator.load(0, take(compiler->compile({"store.cu", kStore, {}, {}}, DeviceInfo()))));
  const Function function = take(emulator.function(0, module, "store"));
  unsigned* out = word();
  Gate gate;
  expect_ok(emulator.call_host(0, nullptr, &Gate::wait, &gate));
  expect_ok(launch(function, {out, 5}));
  expect_ok(emulator.unload(0, module));
  EXPECT_EQ(launch(function, {out, 6}).code(), Code::InvalidArgument);
  gate.open();
  expect_ok(emulator.synchronize(0, Stream()));
  EXPECT_EQ(*out, 5u);
}

#if defined(__SANITIZE_THREAD__)
// Two TBs write one word without order. If this were not found, nothing that is tested under ThreadSanitizer would
// say anything about kernels.
TEST_F(EmulatorTest, ThreadSanitizerSeesRacesOfKernels) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto race = [&] {
    const std::string text = std::string(kStore) + "THESEUS_KERNEL(race, Store, p) { p.out[0] += p.value; }";
    const KernelImage image = take(take(emulator.compiler())->compile({"race.cu", text, {}, {}}, DeviceInfo()));
    const Store parameters{word(), 1};
    Launch launch;
    launch.function = take(emulator.function(0, take(emulator.load(0, image)), "race"));
    launch.grid = 8;
    launch.parameters = &parameters;
    launch.parameter_bytes = sizeof parameters;
    for (int i = 0; i < 20; ++i) expect_ok(emulator.launch(0, launch));
    expect_ok(emulator.synchronize(0, Stream()));
    std::exit(0);
  };
  EXPECT_EXIT(race(), testing::ExitedWithCode(66), "data race");
}
#endif

// --- faults

TEST_F(EmulatorTest, AllocationsFailOnDemand) {
  emulator.faults().fail_allocations(1, 2);
  EXPECT_TRUE(emulator.allocate(0, 1).ok());
  const Status refused = emulator.allocate(0, 1).status();
  EXPECT_NE(refused.message().find("out of memory"), std::string::npos) << refused.message();
  EXPECT_FALSE(emulator.allocate_pinned(1).ok());
  EXPECT_TRUE(emulator.allocate(0, 1).ok());
}

TEST_F(EmulatorTest, LaunchesFailOnDemand) {
  const Function function = store();
  unsigned* out = word();
  emulator.faults().fail_launches(0, 1);
  EXPECT_EQ(launch(function, {out, 1}).code(), Code::UnhandledCudaError);
  expect_ok(launch(function, {out, 2}));
  expect_ok(emulator.synchronize(0, Stream()));
  EXPECT_EQ(*out, 2u);
}

TEST_F(EmulatorTest, ACrashedKernelShowsLaterAndStays) {
  const Function function = store(1);
  unsigned* out = word(1);
  emulator.faults().crash_next_kernel(1);
  expect_ok(launch(function, {out, 1}, nullptr, 1));
  EXPECT_EQ(emulator.synchronize(1, Stream()).code(), Code::UnhandledCudaError);
  EXPECT_EQ(launch(function, {out, 1}, nullptr, 1).code(), Code::UnhandledCudaError);
  EXPECT_EQ(emulator.allocate(1, 1).status().code(), Code::UnhandledCudaError);
  EXPECT_NE(*out, 1u);
  expect_ok(emulator.synchronize(0, Stream()));
}

TEST_F(EmulatorTest, SlowStreamsAreLate) {
  const Event before = take(emulator.create_event(0, true));
  const Event after = take(emulator.create_event(0, true));
  expect_ok(emulator.record(0, before, nullptr));
  expect_ok(emulator.synchronize(0, before));
  emulator.faults().slow_streams(0, 5ms);
  expect_ok(emulator.record(0, after, nullptr));
  expect_ok(emulator.synchronize(0, after));
  EXPECT_GE(take(emulator.elapsed(0, before, after)), 5.0F);
}

TEST_F(EmulatorTest, RefusedPeersAreNamed) {
  emulator.faults().refuse_peers(2, 0);
  EXPECT_FALSE(take(emulator.can_access_peer(0, 2)));
  EXPECT_FALSE(take(emulator.can_access_peer(2, 0)));
  EXPECT_TRUE(take(emulator.can_access_peer(0, 1)));
  expect_ok(emulator.enable_peer(0, 1));
  const Status refused = emulator.enable_peer(0, 2);
  EXPECT_EQ(refused.code(), Code::UnhandledCudaError);
  EXPECT_NE(refused.message().find("device 0"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("device 2"), std::string::npos) << refused.message();
}

// --- captures

TEST_F(EmulatorTest, ACapturedStreamRecordsInsteadOfRunning) {
  const Function function = store();
  const Stream on = take(emulator.create_stream(0));
  unsigned* out = word();
  expect_ok(emulator.fill(0, out, 0, sizeof *out, nullptr));
  expect_ok(emulator.synchronize(0, Stream()));
  expect_ok(emulator.begin_capture(0, on));
  const Capture capture = take(emulator.capture(0, on));
  EXPECT_EQ(capture.state, Capture::State::Active);
  EXPECT_NE(capture.id, 0u);
  expect_ok(launch(function, {out, 7}, on));
  const std::shared_ptr<EmuGraph> graph = take(emulator.end_capture(0, on));
  EXPECT_EQ(take(emulator.capture(0, on)).state, Capture::State::None);
  expect_ok(emulator.synchronize(0, on));
  EXPECT_EQ(*out, 0u);
  for (int round = 0; round < 3; ++round) {
    expect_ok(emulator.fill(0, out, 0, sizeof *out, on));
    expect_ok(emulator.replay(0, graph, on));
    expect_ok(emulator.synchronize(0, on));
    EXPECT_EQ(*out, 7u);
  }
}

TEST_F(EmulatorTest, StreamsJoinACaptureThroughEvents) {
  const Function function = store();
  const Stream user = take(emulator.create_stream(0));
  const Stream ours = take(emulator.create_stream(0));
  const Event fork = take(emulator.create_event(0));
  const Event join = take(emulator.create_event(0));
  unsigned* out = word();
  expect_ok(emulator.begin_capture(0, user));
  expect_ok(emulator.fill(0, out, 1, sizeof *out, user));
  expect_ok(emulator.record(0, fork, user));
  expect_ok(emulator.wait(0, ours, fork));
  EXPECT_EQ(take(emulator.capture(0, ours)).id, take(emulator.capture(0, user)).id);
  expect_ok(launch(function, {out, 9}, ours));
  expect_ok(emulator.record(0, join, ours));
  expect_ok(emulator.wait(0, user, join));
  const std::shared_ptr<EmuGraph> graph = take(emulator.end_capture(0, user));
  EXPECT_EQ(take(emulator.capture(0, ours)).state, Capture::State::None);
  expect_ok(emulator.replay(0, graph, user));
  expect_ok(emulator.synchronize(0, user));
  EXPECT_EQ(*out, 9u);
}

TEST_F(EmulatorTest, WaitingForACapturedStreamSpoilsTheCapture) {
  const Stream on = take(emulator.create_stream(0));
  expect_ok(emulator.begin_capture(0, on));
  EXPECT_EQ(emulator.synchronize(0, on).code(), Code::InvalidUsage);
  EXPECT_EQ(take(emulator.capture(0, on)).state, Capture::State::Invalidated);
  EXPECT_EQ(emulator.end_capture(0, on).status().code(), Code::InvalidUsage);
  expect_ok(emulator.synchronize(0, on));
}

TEST_F(EmulatorTest, ACaptureDoesNotWaitForWhatIsOutside) {
  const Stream inside = take(emulator.create_stream(0));
  const Event outside = take(emulator.create_event(0));
  expect_ok(emulator.record(0, outside, nullptr));
  expect_ok(emulator.begin_capture(0, inside));
  EXPECT_EQ(emulator.wait(0, inside, outside).code(), Code::InvalidUsage);
  take(emulator.end_capture(0, inside));
}

// --- the compiler, and what is left behind

TEST_F(EmulatorTest, AMissingCompilerIsNamed) {
  EmulatorOptions without = options();
  without.compiler = "no-such-compiler";
  const Status refused = Emulator(without).compiler().status();
  EXPECT_EQ(refused.code(), Code::UnhandledCudaError);
  EXPECT_NE(refused.message().find("no-such-compiler"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("THESEUS_EMU_COMPILER"), std::string::npos) << refused.message();
}

TEST_F(EmulatorTest, FlagsArePartOfTheIdentity) {
  EmulatorOptions other = options();
  other.compiler_flags = " -DANSWER=42  -O2 ";
  Emulator flagged(other);
  KernelCompiler* compiler = take(flagged.compiler());
  EXPECT_NE(compiler->identity(DeviceInfo()), take(emulator.compiler())->identity(DeviceInfo()));
  EXPECT_TRUE(compiler->compile({"flags.cu", "static_assert(ANSWER == 42, \"\");", {}, {}}, DeviceInfo()).ok());
}

TEST_F(EmulatorTest, HeadersStayInTheirFolder) {
  KernelCompiler* compiler = take(emulator.compiler());
  for (const char* name : {"/etc/theseus.h", "../theseus.h", "a/../../theseus.h", ""})
    EXPECT_EQ(compiler->compile({"a.cu", "", {{name, ""}}, {}}, DeviceInfo()).status().code(), Code::InvalidArgument);
}

// A folder of the temporary folder's own for a test.
class Temporary : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/theseus-test-XXXXXX";
    root_ = mkdtemp(pattern);
    if (const char* before = std::getenv("TMPDIR")) before_ = before;
    setenv("TMPDIR", root_.c_str(), 1);
  }
  void TearDown() override {
    before_.empty() ? unsetenv("TMPDIR") : setenv("TMPDIR", before_.c_str(), 1);
    std::filesystem::remove_all(root_);
  }
  size_t entries() const {
    const std::filesystem::directory_iterator all(root_);
    return static_cast<size_t>(std::distance(begin(all), end(all)));
  }
  std::string root_;
  std::string before_;
};

TEST_F(Temporary, CompilingLeavesNoFile) {
  Emulator emulator{EmulatorOptions()};
  KernelCompiler* compiler = take(emulator.compiler());
  EXPECT_TRUE(compiler->compile({"store.cu", kStore, {}, {}}, DeviceInfo()).ok());
  EXPECT_FALSE(compiler->compile({"wrong.cu", "wrong", {}, {}}, DeviceInfo()).ok());
  EXPECT_EQ(entries(), 0u);
}

// What a killed process left (old, and not locked) goes; what is in use, or young, stays.
TEST_F(Temporary, AbandonedFoldersAreRemoved) {
  Result<TemporaryFolder> used = TemporaryFolder::make();
  ASSERT_TRUE(used.ok()) << used.status().message();
  const std::filesystem::path abandoned = std::filesystem::path(root_) / "theseus-emu-aaaaaa";
  const std::filesystem::path young = std::filesystem::path(root_) / "theseus-emu-bbbbbb";
  const std::filesystem::path foreign = std::filesystem::path(root_) / "somebody-else";
  const auto old = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  for (const auto& folder : {abandoned, young, foreign}) std::filesystem::create_directory(folder);
  for (const auto& folder : {abandoned, foreign, std::filesystem::path(used->path())})
    std::filesystem::last_write_time(folder, old);
  {
    Result<TemporaryFolder> next = TemporaryFolder::make();
  }
  EXPECT_FALSE(std::filesystem::exists(abandoned));
  EXPECT_TRUE(std::filesystem::exists(young));
  EXPECT_TRUE(std::filesystem::exists(foreign));
  EXPECT_TRUE(std::filesystem::exists(used->path()));
}

TEST_F(EmulatorTest, AForkedChildIsRefused) {
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = emulator.allocate(0, 1).status().code() == Code::InvalidUsage &&
                         emulator.create_stream(0).status().code() == Code::InvalidUsage &&
                         emulator.pointer_info(nullptr).status().code() == Code::InvalidUsage;
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace theseus::cuda
