// Kernels generated for a plan, compiled by g++ from their text and run with an OS thread for each CUDA thread, against
// the host executor: bit for bit.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "compiler/compile.h"
#include "compiler/kernel_text.h"
#include "device_world.h"
#include "request.h"

namespace theseus {
namespace {

using device::Protocol;
using testing::CollectiveCase;
using testing::DeviceCase;
using testing::DeviceWorld;
using testing::geometry_of;
using testing::KernelLaunch;
using testing::ShmWorld;

const std::filesystem::path kSources =
    std::filesystem::path(__FILE__).parent_path().parent_path().parent_path().parent_path() / "csrc";

void replace(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

// The kernels of all ranks of a plan, as one shared object.
class Module {
 public:
  // Each kernel has its rank behind its name.
  Module(const Plan& plan, const PlanKernel& kernel) {
    char folder[] = "/tmp/theseus-kernels-XXXXXX";
    EXPECT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    std::ofstream source(folder_ / "kernel.cc");
    for (const RankPlan& part : plan.rank_plans) {
      const KernelText text = plan_text(plan, part, kernel);
      std::string body = text.text;
      replace(body, text.kernel, text.kernel + "_" + std::to_string(part.rank));
      source << body;
      for (const auto& [name, header] : text.headers) {
        std::filesystem::create_directories((folder_ / name).parent_path());
        std::ofstream(folder_ / name) << header;
      }
    }
    source.close();
    const std::string command = "c++ -std=c++17 -O1 -shared -fPIC -ffp-contract=off -pthread -I" + folder_.string() +
                                " -I" + kSources.string() + " " + (folder_ / "kernel.cc").string() + " -o " +
                                (folder_ / "kernel.so").string();
    EXPECT_EQ(std::system(command.c_str()), 0);
    handle_ = dlopen((folder_ / "kernel.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(handle_, nullptr) << dlerror();
  }
  ~Module() {
    if (handle_ != nullptr) dlclose(handle_);
    std::filesystem::remove_all(folder_);
  }
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  emu::Entry entry(int rank) const {
    return reinterpret_cast<emu::Entry>(dlsym(handle_, ("theseus_plan_" + std::to_string(rank)).c_str()));
  }

 private:
  std::filesystem::path folder_;
  void* handle_ = nullptr;
};

struct Sample {
  const char* algorithm;
  Collective collective;
  int ranks;
  PlanKernel kernel;
  CompileOptions options;
};

std::vector<Sample> samples() {
  CompileOptions fused, loops, chains;
  fused.fuse = true;
  loops.loop = LoopOrder::SubPipelines;
  chains.fold = false;
  return {
      {"ring", Collective::AllReduce, 4, {DataType::Float32, RedOp::Sum, Protocol::Simple, true}, fused},
      {"one_shot", Collective::AllReduce, 3, {DataType::Bfloat16, RedOp::Sum, Protocol::LL, true}, loops},
      {"direct", Collective::ReduceScatter, 3, {DataType::Float8e5m2, RedOp::Max, Protocol::Simple, false}, chains},
      {"tree", Collective::Broadcast, 5, {DataType::Int64, RedOp::Sum, Protocol::LL, false}, {}},
  };
}

class GeneratedKernel : public ::testing::TestWithParam<int> {};

TEST_P(GeneratedKernel, GivesTheHostsBits) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the kernel would be compiled without the sanitizer; the interpreting one is tested with it";
#endif
  if (std::system("c++ --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no C++ compiler as c++ on PATH";
  const Sample sample = samples()[static_cast<size_t>(GetParam())];
  const Topology topology = single_host(sample.ranks);
  Result<Algorithm> built = build(sample.algorithm, sample.collective, topology);
  ASSERT_TRUE(built.ok()) << built.status().message();
  const Result<Plan> plan = compile(*built, topology, sample.options);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const Module module(*plan, sample.kernel);
  DeviceWorld world(*plan, {});
  ShmWorld host(geometry_of(sample.ranks, kMaxSlots, 4096));
  for (uint64_t seed = 0; seed < 6; ++seed) {
    CollectiveCase call{sample.collective, sample.ranks, 1 + seed * seed * 17};
    call.op = sample.kernel.op;
    call.in_place = seed % 2 == 1;
    const DeviceCase test{call, sample.kernel.type, sample.kernel.scales && seed % 3 == 0, sample.kernel.protocol,
                          seed};
    for (device::Request& request : world.requests(test)) request.program = nullptr;
    std::vector<KernelLaunch> launches = world.launches(nullptr, 2);
    for (size_t rank = 0; rank < launches.size(); ++rank) {
      launches[rank].entry = module.entry(static_cast<int>(rank));
      ASSERT_NE(launches[rank].entry, nullptr);
    }
    testing::run_in_threads(launches);
    EXPECT_EQ(world.memory(), testing::run_on_host(test, *plan, host, world.piece_bytes(test))) << test.name();
    for (int rank = 0; rank < sample.ranks; ++rank) EXPECT_EQ(world.fault(rank), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Samples, GeneratedKernel, ::testing::Range(0, 4));

}  // namespace
}  // namespace theseus
