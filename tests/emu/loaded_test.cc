// Plans from outside on emulated GPUs: what is loaded there runs with the host executor's bits, whatever made it, and
// what must not run is refused by all ranks.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "compiler/compile.h"
#include "compiler/registry.h"
#include "gpu_plans.h"
#include "schedule/places.h"
#include "unit/executor/request.h"

namespace theseus {
namespace {

using testing::DeviceCase;
using testing::Factor;
using testing::GpuPlan;
using testing::GpuRanks;

Plan compiled(const std::string& name, Collective collective, const Topology& topology, int root,
              const CompileOptions& options = {}) {
  Result<Algorithm> built = build(name, collective, topology, root);
  EXPECT_TRUE(built.ok()) << built.status().message();
  Result<Plan> plan = compile(*built, topology, options);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return std::move(*plan);
}

// Requests of several counts, types and operations, in place and out of it, as far as the plan is right for them.
// Returns how many it ran.
int run_some(GpuPlan& loaded, const Plan& plan, const std::vector<size_t>& counts) {
  int runs = 0;
  uint64_t seed = 0;
  for (const size_t count : counts) {
    for (const bool in_place : {false, true}) {
      if (!(in_place ? loaded.loaded().in_place : loaded.loaded().out_of_place)) continue;
      DeviceCase test{{plan.collective, plan.ranks, count}, DataType::Float32};
      test.seed = ++seed;
      test.call.root = plan.root;
      test.call.in_place = in_place;
      if (is_reducing(plan.collective) && runs % 3 == 1) test.type = DataType::Int32;
      if (is_reducing(plan.collective) && runs % 3 == 2 && loaded.loaded().scales) test.factor = Factor::Mean;
      EXPECT_EQ(loaded.difference(test), "") << plan.name;
      ++runs;
    }
  }
  return runs;
}

TEST(GpuLoadedPlans, OfTheCompilerRun) {
  std::mt19937_64 random(3);
  for (const int ranks : {2, 3, 4, 8}) {
    GpuRanks gpus(testing::spread_over_devices(ranks));
    for (const BuiltIn& algorithm : built_ins()) {
      for (const Collective collective : testing::kWithPlans) {
        if (!algorithm.makes(collective)) continue;
        CompileOptions options;
        options.loop = random() % 2 == 0 ? LoopOrder::SubPipelines : LoopOrder::MicroBatches;
        options.fuse = random() % 2 == 0;
        // Without folds ranks that reduce each for themselves would end with other bits: such plans are refused.
        options.fold = random() % 2 == 0 || std::string(algorithm.name) == "one_shot";
        const bool two_hosts = ranks % 2 == 0 && random() % 2 == 0;
        const Topology topology = two_hosts ? uniform_hosts(2, ranks / 2, 2) : single_host(ranks);
        const Plan plan = compiled(algorithm.name, collective, topology, static_cast<int>(random() % 2), options);
        GpuPlan loaded(gpus, plan);
        EXPECT_GT(run_some(loaded, plan, {1 + random() % 100}), 0);
      }
    }
  }
}

// Several micro-batches of a loaded plan, in both orders of loops.
TEST(GpuLoadedPlans, RunInManyMessages) {
  GpuRanks gpus(testing::spread_over_devices(4));
  for (const LoopOrder loop : {LoopOrder::MicroBatches, LoopOrder::SubPipelines}) {
    CompileOptions options;
    options.loop = loop;
    options.fuse = true;
    const Plan plan = compiled("hierarchical", Collective::AllReduce, uniform_hosts(2, 2, 2), 0, options);
    GpuPlan loaded(gpus, plan);
    EXPECT_EQ(run_some(loaded, plan, {300'001}), 2);
  }
}

// Schedules around slow NICs, as the agents publish them: their rails are channels here.
TEST(GpuLoadedPlans, OfTheHealerRun) {
  const Topology topology = uniform_hosts(2, 2, 2);
  GpuRanks gpus(testing::spread_over_devices(4));
  const std::string weights = ";out=16,16,4,16;in=16,16,16,4";
  const std::pair<Collective, std::string> cases[] = {
      {Collective::AllReduce, "healed:hosts=2;rails=2;chunks=8;shares=5,3" + weights},
      {Collective::AllGather, "healed:hosts=2;rails=2;chunks=4" + weights},
      {Collective::ReduceScatter, "healed:hosts=2;rails=2;chunks=4" + weights},
      {Collective::AllToAll, "healed:hosts=2;rails=2;chunks=4" + weights},
  };
  for (const auto& [collective, name] : cases) {
    CompileOptions options;
    options.scheduling = Scheduling::PerConnection;
    const Plan plan = compiled(name, collective, topology, 0, options);
    GpuPlan loaded(gpus, plan);
    EXPECT_GT(run_some(loaded, plan, {1, 7, 64, 5000}), 0) << name;
  }
}

// AllGather by hand, of two and more pieces: each on a channel of its own to every rank, taken last channel first.
Plan on_channels(int ranks, int16_t channels) {
  Plan plan;
  plan.name = "channels";
  plan.collective = Collective::AllGather;
  plan.ranks = ranks;
  plan.chunks_per_block = channels;
  for (int rank = 0; rank < ranks; ++rank) {
    RankPlan part;
    part.rank = rank;
    const auto connect = [&part](int peer, bool outgoing, int16_t channel) {
      part.connections.push_back({peer, outgoing, 0, channel});
      return static_cast<int16_t>(part.connections.size() - 1);
    };
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == rank) continue;
      ThreadBlock arrivals;
      for (int16_t channel = 0; channel < channels; ++channel) {
        Instruction send;
        send.opcode = Opcode::Send;
        send.send = connect(peer, true, channel);
        send.src = {Buffer::Input, channel};
        part.thread_blocks.push_back({{send}});
      }
      for (int16_t channel = channels; channel-- > 0;) {
        Instruction recv;
        recv.opcode = Opcode::Recv;
        recv.recv = connect(peer, false, channel);
        recv.dst = {Buffer::Output, peer * channels + channel};
        arrivals.instructions.push_back(recv);
      }
      part.thread_blocks.push_back(arrivals);
    }
    ThreadBlock copies;
    for (int16_t channel = 0; channel < channels; ++channel) {
      Instruction copy;
      copy.opcode = Opcode::Copy;
      copy.src = {Buffer::Input, channel};
      copy.dst = {Buffer::Output, rank * channels + channel};
      copies.instructions.push_back(copy);
    }
    part.thread_blocks.push_back(copies);
    plan.rank_plans.push_back(part);
  }
  return plan;
}

TEST(GpuLoadedPlans, EachChannelOfAPairIsALinkOfItsOwn) {
  const Plan plan = on_channels(3, 5);
  GpuRanks gpus(testing::spread_over_devices(3));
  GpuPlan loaded(gpus, plan);
  EXPECT_EQ(run_some(loaded, plan, {1, 5, 999, 20'000}), 8);
}

// AllReduce of two ranks and two chunks by hand: each parks the other's chunk 0 in the Output of chunk 1, so that it is
// wrong in place, and for counts that do not divide. `in_place_only`: the sums are made in Output, which must hold the
// input.
Plan parking(bool in_place_only) {
  Plan plan;
  plan.name = "parking";
  plan.ranks = 2;
  plan.chunks_per_block = 2;
  for (int rank = 0; rank < 2; ++rank) {
    RankPlan part;
    part.rank = rank;
    part.connections = {{1 - rank, true}, {1 - rank, false}};
    ThreadBlock block;
    const auto send = [&block](int chunk) {
      Instruction made;
      made.opcode = Opcode::Send;
      made.send = 0;
      made.src = {Buffer::Input, chunk};
      block.instructions.push_back(made);
    };
    const auto add = [&block, rank](Place source, int chunk) {
      Instruction made;
      made.opcode = Opcode::RecvReduceCopy;
      made.recv = 1;
      made.src = source;
      made.dst = {Buffer::Output, chunk};
      made.recv_is_left = rank == 1;  // rank 0's value comes first on both
      block.instructions.push_back(made);
    };
    if (in_place_only) {
      send(0);
      send(1);
      add({Buffer::Input, 0}, 0);
      add({Buffer::Output, 1}, 1);
    } else {
      send(1);
      send(0);
      add({Buffer::Input, 1}, 0);
      Instruction copy;
      copy.opcode = Opcode::Copy;
      copy.src = {Buffer::Output, 0};
      copy.dst = {Buffer::Output, 1};
      block.instructions.push_back(copy);
      add({Buffer::Input, 0}, 0);
    }
    part.thread_blocks.push_back(block);
    plan.rank_plans.push_back(part);
  }
  return plan;
}

// Counts that such a plan is wrong for run on padded copies; what the host makes of an even count is what is right.
TEST(GpuLoadedPlans, ThatParkChunksRunWithAnyCount) {
  GpuRanks gpus({0, 1});
  const Plan plan = parking(false);
  GpuPlan loaded(gpus, plan);
  EXPECT_FALSE(loaded.loaded().any_count);
  EXPECT_FALSE(loaded.loaded().in_place);
  EXPECT_GT(run_some(loaded, plan, {2, 1000}), 0);
  const Plan ring = compiled("ring", Collective::AllReduce, single_host(2), 0);
  GpuPlan reference(gpus, ring);
  // Sums of two are the same in any order.
  for (const size_t count : {1, 7, 1001, 40'001}) {
    DeviceCase test{{Collective::AllReduce, 2, count}, DataType::Float32};
    test.seed = count;
    EXPECT_EQ(loaded.difference(test, ring), "");
    if (!loaded.loaded().scales) continue;
    test.factor = Factor::Mean;
    EXPECT_EQ(loaded.difference(test, ring), "");
  }
}

TEST(GpuLoadedPlans, ForOnePlaceSaySo) {
  GpuRanks gpus({0, 1});
  const Plan plan = parking(true);
  GpuPlan loaded(gpus, plan);
  EXPECT_TRUE(loaded.loaded().in_place);
  EXPECT_FALSE(loaded.loaded().out_of_place);
  EXPECT_EQ(run_some(loaded, plan, {2, 1000}), 2);
  DeviceCase test{{Collective::AllReduce, 2, 10}, DataType::Float32};
  const std::string refusal = loaded.difference(test);
  EXPECT_NE(refusal.find("right in place only"), std::string::npos) << refusal;
}

TEST(GpuLoadedPlans, ThatAreWrongAreRefusedByAll) {
  GpuRanks gpus({0, 1, 2});
  Plan wrong = on_channels(3, 1);
  wrong.rank_plans[1].thread_blocks[1].instructions[0].dst.index = 2;  // twice there, and never in its place
  const std::pair<std::string, std::string> cases[] = {
      {serialize(wrong), "rank 1"},
      {"no plan", "rank 0"},
      {serialize(on_channels(2, 1)), "is for 2 ranks, this communicator has 3"},
  };
  for (const auto& [file, said] : cases) {
    testing::on_threads(3, [&](int rank) {
      const Status status = gpus[rank].load_plan(file).status();
      EXPECT_EQ(status.code(), Code::InvalidArgument) << status.message();
      EXPECT_NE(status.message().find(said), std::string::npos) << status.message();
    });
  }
  const Plan right = on_channels(3, 1);
  GpuPlan loaded(gpus, right);
  EXPECT_GT(run_some(loaded, right, {10}), 0);
}

// Started by tests/emu/test_imported.py: all plan files of a folder. Says on standard output what became of each.
TEST(DISABLED_GpuLoadedPlans, OfAFolder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(std::getenv("PLANS_OF_TEST"))) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const auto& path : files) {
    std::ifstream stream(path, std::ios::binary);
    const std::string file((std::istreambuf_iterator<char>(stream)), {});
    const Result<Plan> plan = parse_plan(file);
    ASSERT_TRUE(plan.ok()) << path << ": " << plan.status().message();
    GpuRanks gpus(testing::spread_over_devices(plan->ranks));
    GpuPlan loaded(gpus, *plan);
    const auto pieces = static_cast<size_t>(plan->chunks_per_block);
    std::vector<size_t> counts = {pieces, 300 * pieces};
    if (loaded.loaded().any_count) counts.insert(counts.end(), {1, 5 * pieces + 1});
    const int runs = run_some(loaded, *plan, counts);
    EXPECT_GT(runs, 0) << path;
    std::printf("%s: %s, %d ranks, %d thread blocks of rank 0, %d requests %s\n", path.filename().c_str(),
                name_of(plan->collective), plan->ranks, loaded.loaded().thread_blocks, runs,
                HasFailure() ? "FAILED" : "equal");
  }
}

}  // namespace
}  // namespace theseus
