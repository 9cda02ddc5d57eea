// The same requests by other means give the same bits: on the host, and by kernels generated for the plan. Settings are
// read once a process, so each means is a process of its own (a disabled test), which leaves its results in a file.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "executor/cuda_kernels.h"
#include "gpu_ranks.h"

namespace theseus {
namespace {

using testing::GpuMemory;
using testing::GpuStream;

constexpr int kRanks = 4;

// Values whose sums and products depend on the order in which they are taken.
std::vector<float> input_of(int rank, size_t count) {
  std::vector<float> input(count);
  for (size_t i = 0; i < count; ++i) {
    input[i] = static_cast<float>((i * 2654435761u + static_cast<size_t>(rank) * 40503u) % 100003) / 79190.0f + 0.3f;
  }
  return input;
}

// A rank's buffer, wherever this process keeps it.
class Memory {
 public:
  explicit Memory(const std::vector<float>& values) : values_(values) {
    Result<cuda::Driver*> driver = cuda::driver();
    EXPECT_TRUE(driver.ok()) << driver.status().message();
    if (*driver != nullptr) gpu_ = std::make_unique<GpuMemory>(0, values_.data(), values_.size() * sizeof(float));
  }
  void* at() { return gpu_ == nullptr ? values_.data() : gpu_->at(); }
  const std::vector<float>& read() {
    if (gpu_ != nullptr) gpu_->read(values_.data());
    return values_;
  }

 private:
  std::vector<float> values_;
  std::unique_ptr<GpuMemory> gpu_;
};

// What all ranks have after a few requests, as bytes.
std::string results() {
  std::string bytes;
  Result<std::vector<Communicator*>> made = Communicator::init_all(kRanks, std::vector<int>(kRanks, 0));
  EXPECT_TRUE(made.ok()) << made.status().message();
  const bool on_gpu = cuda::driver().ok() && *cuda::driver() != nullptr;
  // Each rank its own: on one they would run one after the other.
  std::vector<std::unique_ptr<GpuStream>> streams;
  for (int rank = 0; rank < kRanks && on_gpu; ++rank) streams.push_back(std::make_unique<GpuStream>(0));
  for (const size_t count : {7, 3000}) {
    for (const Collective collective : {Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce}) {
      for (const RedOp op : {RedOp::Sum, RedOp::Avg}) {
        std::vector<std::unique_ptr<Memory>> inputs, outputs;
        group_start();
        for (int rank = 0; rank < kRanks; ++rank) {
          const BufferShape shape = buffer_shape(collective, kRanks, 1, rank);
          inputs.push_back(std::make_unique<Memory>(input_of(rank, count * static_cast<size_t>(shape.input_blocks))));
          outputs.push_back(std::make_unique<Memory>(std::vector<float>(count, -1)));
          CollectiveCall call;
          call.collective = collective;
          call.send = inputs.back()->at();
          call.recv = outputs.back()->at();
          call.count = count;
          call.op = static_cast<int>(op);
          if (on_gpu) call.stream = streams[static_cast<size_t>(rank)]->get();
          call.root = collective == Collective::Reduce ? 1 : 0;
          EXPECT_OK((*made)[static_cast<size_t>(rank)]->submit(call));
        }
        EXPECT_OK(group_end());
        for (auto& stream : streams) EXPECT_OK(stream->wait());
        for (auto& output : outputs) {
          const std::vector<float>& values = output->read();
          bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
        }
      }
    }
  }
  testing::on_threads(kRanks, [&](int rank) { (void)Communicator::destroy((*made)[static_cast<size_t>(rank)]).ok(); });
  return bytes;
}

void leave(const std::string& bytes) { std::ofstream(std::getenv("RESULTS_OF_TEST"), std::ios::binary) << bytes; }

TEST(DISABLED_GpuBits, Results) { leave(results()); }

TEST(DISABLED_GpuBits, ResultsOfGeneratedKernels) {
  const std::string before = results();  // by whatever kernel is there
  Result<cuda::DeviceInfo> device = testing::driver().device_info(0);
  ASSERT_TRUE(device.ok());
  CudaKernels& kernels = CudaKernels::of(testing::driver(), *device);
  kernels.settle();
  EXPECT_GT(kernels.generated(), 0u);
  EXPECT_EQ(results(), before);
  leave(before);
}

// The results of such a process, with one setting more.
std::string results_of(const std::string& test, const char* setting, const char* value) {
  char file[] = "/tmp/theseus-results-XXXXXX";
  const int descriptor = mkstemp(file);
  EXPECT_GE(descriptor, 0);
  close(descriptor);
  const std::string filter = "--gtest_filter=DISABLED_GpuBits." + test;
  const pid_t process = fork();
  if (process == 0) {
    setenv("RESULTS_OF_TEST", file, 1);
    setenv(setting, value, 1);
    execl("/proc/self/exe", "test_emu", filter.c_str(), "--gtest_also_run_disabled_tests", "--gtest_brief=1", nullptr);
    _exit(127);
  }
  int status = -1;
  EXPECT_EQ(waitpid(process, &status, 0), process);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << setting << "=" << value;
  std::ifstream stream(file, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(stream)), {});
  std::filesystem::remove(file);
  return bytes;
}

TEST(GpuBits, EqualTheHosts) {
  const std::string own = results();
  EXPECT_FALSE(own.empty());
  EXPECT_TRUE(results_of("Results", "THESEUS_DEVICE", "host") == own);
}

TEST(GpuBits, AreThoseOfGeneratedKernels) {
  EXPECT_TRUE(results_of("ResultsOfGeneratedKernels", "THESEUS_KERNELS", "generated") == results());
}

}  // namespace
}  // namespace theseus
