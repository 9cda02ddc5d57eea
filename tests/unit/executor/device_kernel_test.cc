// Kernels generated for a plan, compiled by g++ from their text and run with an OS thread for each CUDA thread, against
// the host executor: bit for bit. A sample of plans, types and operations, since each takes seconds to compile: drawn
// until it has everything that a kernel can be made of.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "compiler/compile.h"
#include "compiler/kernel_text.h"
#include "device_world.h"
#include "drivers/cuda/texts.h"
#include "request.h"
#include "schedule/check.h"
#include "schedule/places.h"

namespace theseus {
namespace {

using device::Protocol;
using testing::CollectiveCase;
using testing::DeviceCase;
using testing::DeviceWorld;
using testing::Factor;
using testing::geometry_of;
using testing::KernelLaunch;
using testing::ShmWorld;

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
      for (const auto& [name, header] : text.headers) write(name, header);
    }
    source.close();
    for (const cuda::SourceText& header : cuda::emulator_headers()) write(header.name, header.text);
    const std::string command = "c++ -std=c++17 -O1 -shared -fPIC -fvisibility=hidden -ffp-contract=off -pthread -I" +
                                folder_.string() + " " + (folder_ / "kernel.cc").string() + " -o " +
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
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }

  std::filesystem::path folder_;
  void* handle_ = nullptr;
};

// ---- The sample ----

struct Sample {
  Plan plan;
  PlanKernel kernel;
  std::string name;
};

// What no built-in algorithm has: a Nop, and a Reduce of what lies in memory already.
Plan plan_by_hand() {
  Plan plan;
  plan.name = "by hand";
  plan.ranks = 2;
  for (int rank = 0; rank < 2; ++rank) {
    RankPlan part;
    part.rank = rank;
    part.connections = {{1 - rank, /*outgoing=*/true}, {1 - rank, /*outgoing=*/false}};
    part.scratch_chunks = 1;
    Instruction send, recv, nop, copy, reduce;
    send.opcode = Opcode::Send;
    send.send = 0;
    send.src = {Buffer::Input, 0};
    recv.opcode = Opcode::Recv;
    recv.recv = 1;
    recv.dst = {Buffer::Scratch, 0};
    nop.dependencies = {{0, 0, 0}};  // in place, the output is what is sent
    copy.opcode = Opcode::Copy;
    copy.src = {Buffer::Input, 0};
    copy.dst = {Buffer::Output, 0};
    reduce.opcode = Opcode::Reduce;
    reduce.src = {Buffer::Scratch, 0};
    reduce.dst = {Buffer::Output, 0};
    part.thread_blocks = {{{send}}, {{recv, nop, copy, reduce}}};
    plan.rank_plans.push_back(part);
  }
  return plan;
}

// What the kernels of a sample are made of, counted from its plan, each by the protocol that it goes by: instructions,
// places, waits, loops; type, operation, scaling.
std::set<std::string> features_of(const Sample& sample) {
  std::set<std::string> features;
  const std::string by = sample.kernel.protocol == Protocol::LL ? " by LL" : " by Simple";
  features.insert(name_of(sample.kernel.type) + by);
  const bool reduces = is_reducing(sample.plan.collective);
  if (reduces) features.insert(name_of(sample.kernel.op) + by);
  if (reduces && sample.kernel.scales) features.insert("scaling" + by);
  const char* const places[] = {"nowhere", "Input", "Output", "Scratch"};
  for (const RankPlan& part : sample.plan.rank_plans) {
    const FlatProgram flat = flatten(sample.plan, part);
    if (flat.loops.size() > flat.blocks.size()) features.insert("several loops" + by);
    for (const device::Wait& wait : flat.waits) {
      features.insert((wait.distance > 0 ? "wait for the micro-batch before" : "wait") + by);
    }
    for (const ThreadBlock& block : part.thread_blocks) {
      for (const Instruction& instruction : block.instructions) {
        features.insert(name_of(instruction.opcode) + by);
        features.insert("from " + std::string(places[static_cast<int>(instruction.src.buffer)]) + by);
        features.insert("to " + std::string(places[static_cast<int>(instruction.dst.buffer)]) + by);
      }
    }
  }
  return features;
}

std::set<std::string> all_features() {
  std::set<std::string> all;
  for (const std::string by : {" by LL", " by Simple"}) {
    for (int opcode = 0; opcode < kOpcodes; ++opcode) all.insert(name_of(static_cast<Opcode>(opcode)) + by);
    for (int type = 0; type < kDataTypes; ++type) all.insert(name_of(static_cast<DataType>(type)) + by);
    for (int op = 0; op <= static_cast<int>(RedOp::Min); ++op) all.insert(name_of(static_cast<RedOp>(op)) + by);
    for (const char* const other :
         {"scaling", "several loops", "wait", "wait for the micro-batch before", "from nowhere", "from Input",
          "from Output", "from Scratch", "to nowhere", "to Output", "to Scratch"}) {
      all.insert(other + by);
    }
  }
  return all;
}

Sample draw(std::mt19937_64& random) {
  const auto flip = [&random] { return random() % 2 == 0; };
  Sample sample;
  sample.kernel = {static_cast<DataType>(random() % kDataTypes), static_cast<RedOp>(random() % 4),
                   flip() ? Protocol::LL : Protocol::Simple, flip()};
  if (random() % 8 == 0) {
    sample.plan = plan_by_hand();
  } else {
    const BuiltIn& algorithm = built_ins()[random() % built_ins().size()];
    std::vector<Collective> made;
    for (const Collective collective : testing::kWithPlans) {
      if (algorithm.makes(collective)) made.push_back(collective);
    }
    const int ranks = 2 + static_cast<int>(random() % 4);
    const Topology topology = ranks == 4 && flip() ? uniform_hosts(2, 2, 1) : single_host(ranks);
    const Collective collective = made[random() % made.size()];
    const Result<Algorithm> built = build(algorithm.name, collective, topology, static_cast<int>(random() % 2));
    EXPECT_TRUE(built.ok()) << built.status().message();
    CompileOptions options;
    options.scheduling = flip() ? Scheduling::Hpds : Scheduling::PerConnection;
    options.loop = flip() ? LoopOrder::SubPipelines : LoopOrder::MicroBatches;
    options.fuse = flip();
    options.fold = flip();
    const Result<Plan> plan = compile(*built, topology, options);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    sample.plan = *plan;
  }
  sample.name = sample.plan.name + ", " + name_of(sample.plan.collective) + ", " + std::to_string(sample.plan.ranks) +
                " ranks, " + name_of(sample.kernel.type) + ", " + name_of(sample.kernel.op) +
                (sample.kernel.scales ? ", scaling" : "") + (sample.kernel.protocol == Protocol::LL ? ", LL" : "");
  return sample;
}

size_t instructions_of(const Sample& sample) {
  size_t instructions = 0;
  for (const RankPlan& part : sample.plan.rank_plans) instructions += theseus::instructions_of(part);
  return instructions;
}

// Draws until nothing is missing, and takes the draw that adds most, or of equals the shortest.
std::vector<Sample> draw_samples(std::set<std::string>& missing) {
  std::mt19937_64 random(4);
  std::vector<Sample> samples;
  while (!missing.empty() && samples.size() < 40) {
    Sample best;
    size_t gain = 0;
    for (int i = 0; i < 100; ++i) {
      Sample other = draw(random);
      size_t adds = 0;
      for (const std::string& feature : features_of(other)) adds += missing.count(feature);
      if (adds < gain || adds == 0 || (adds == gain && instructions_of(other) >= instructions_of(best))) continue;
      best = std::move(other);
      gain = adds;
    }
    if (gain == 0) continue;
    for (const std::string& feature : features_of(best)) missing.erase(feature);
    samples.push_back(std::move(best));
  }
  return samples;
}

// Some requests of a sample: "" where all have the host's bits.
std::string difference(const Sample& sample, const Module& module) {
  const Plan& plan = sample.plan;
  DeviceWorld world(plan, {.slots = 2, .slot_bytes = 64, .lines = 9});
  ShmWorld host(geometry_of(plan.ranks, kMaxSlots, 4096));
  for (uint64_t seed = 0; seed < 6; ++seed) {
    CollectiveCase call{plan.collective, plan.ranks, 1 + seed * seed * 17};
    call.op = sample.kernel.op;
    call.root = plan.root;
    call.in_place = seed % 2 == 1 && plan.collective != Collective::AllToAll;
    DeviceCase test{call, sample.kernel.type, Factor::None, sample.kernel.protocol, seed};
    if (is_reducing(plan.collective) && sample.kernel.scales && seed % 3 != 2) test.factor = Factor::Any;
    for (device::Request& request : world.requests(test)) request.program = nullptr;
    std::vector<KernelLaunch> launches = world.launches(nullptr, 2);
    for (size_t rank = 0; rank < launches.size(); ++rank) {
      launches[rank].entry = module.entry(static_cast<int>(rank));
      if (launches[rank].entry == nullptr) return "no kernel for rank " + std::to_string(rank);
    }
    testing::run_in_threads(launches);
    for (int rank = 0; rank < plan.ranks; ++rank) {
      if (world.fault(rank) != 0) return test.name() + ": a fault on rank " + std::to_string(rank);
    }
    if (world.memory() != testing::run_on_host(test, plan, host, world.piece_bytes(test))) {
      return test.name() + ": other bits than on the host";
    }
  }
  return "";
}

TEST(GeneratedKernels, SampleHasAllThatKernelsAreMadeOf) {
  std::set<std::string> missing = all_features();
  const std::vector<Sample> samples = draw_samples(missing);
  for (const std::string& feature : missing) ADD_FAILURE() << "no kernel of the sample has: " << feature;
  EXPECT_LE(samples.size(), 30u) << "more than a test run has time to compile";
}

TEST(GeneratedKernels, GiveTheHostsBits) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the kernels would be compiled without the sanitizer; the interpreting one is tested with it";
#endif
  if (std::system("c++ --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no C++ compiler as c++ on PATH";
  std::set<std::string> missing = all_features();
  const std::vector<Sample> samples = draw_samples(missing);
  std::vector<std::unique_ptr<Module>> modules(samples.size());
  std::atomic<size_t> next{0};
  const auto compile_some = [&] {
    for (size_t i; (i = next.fetch_add(1)) < samples.size();) {
      modules[i] = std::make_unique<Module>(samples[i].plan, samples[i].kernel);
    }
  };
  std::thread other(compile_some);
  compile_some();
  other.join();
  for (size_t i = 0; i < samples.size(); ++i) EXPECT_EQ(difference(samples[i], *modules[i]), "") << samples[i].name;
}

}  // namespace
}  // namespace theseus
