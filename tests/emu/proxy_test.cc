// Communicators on emulated GPUs of several hosts: what kernels send to another host goes over its rails. Ranks that
// may not share memory count as hosts of their own, so those of one process play several; those of processes have a
// virtual host each two.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/env.h"
#include "compiler/compile.h"
#include "compiler/registry.h"
#include "drivers/cuda/emu.h"
#include "gpu_ranks.h"
#include "transport/flow_counters.h"
#include "transport/pacing.h"
#include "unit/runtime/rank_processes.h"

namespace theseus {
namespace {

using testing::CollectiveCase;
using testing::driver;
using testing::GpuBuffers;
using testing::GpuMemory;
using testing::GpuRanks;
using testing::GpuStream;
using testing::in_processes;
using testing::on_threads;

constexpr Collective kCollectives[] = {Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter,
                                       Collective::Broadcast, Collective::Reduce,    Collective::AllToAll,
                                       Collective::Gather,    Collective::Scatter};

// Settings for the time of a test.
class Settings {
 public:
  Settings(std::initializer_list<std::pair<const char*, std::string>> settings) {
    for (const auto& [name, value] : settings) {
      setenv(name, value.c_str(), 1);
      names_.push_back(name);
    }
    reload_settings();
  }
  ~Settings() {
    for (const char* name : names_) unsetenv(name);
    reload_settings();
  }

 private:
  std::vector<const char*> names_;
};

class GpuHosts : public ::testing::Test {
 protected:
  Settings settings_{{"THESEUS_HOST", "proxy-test"}, {"THESEUS_SHM", "0"}, {"THESEUS_NICS", "127.0.0.1,127.0.0.2"}};
};

template <class T>
void check(GpuRanks& ranks, const CollectiveCase& test, int plan = 0) {
  std::vector<std::unique_ptr<GpuBuffers<T>>> buffers;
  std::vector<CollectiveCall> calls;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    buffers.push_back(std::make_unique<GpuBuffers<T>>(test, rank, ranks.device(rank)));
    calls.push_back(buffers.back()->call(test));
    calls.back().plan = plan;
  }
  EXPECT_OK(ranks.run(calls));
  for (auto& buffer : buffers) EXPECT_EQ(buffer->difference(), "");
}

CollectiveCall sum_of(GpuMemory& memory, size_t count, cuda::Stream stream) {
  CollectiveCall call;
  call.send = call.recv = memory.at();
  call.count = count;
  call.type = DataType::Int32;
  call.stream = stream;
  return call;
}

// Every collective gives the reference's result, from one element to more than all slots hold, again and again.
TEST_F(GpuHosts, GiveTheReferencesResult) {
  GpuRanks ranks({0, 0, 1});
  for (const Collective collective : kCollectives) {
    for (const size_t count : {1, 13, 5000, 400'000}) {
      check<int32_t>(ranks, {collective, ranks.size(), count, RedOp::Sum, 2});
    }
    check<double>(ranks, {collective, ranks.size(), 3001, RedOp::Max, 1});
    check<uint8_t>(ranks, {collective, ranks.size(), 65, RedOp::Min, 0, collective != Collective::AllToAll});
  }
}

// --- The same bits as by the host executor, which has a process of its own, as a process has one kind of device.

// Values whose sums depend on the order in which they are taken.
std::vector<float> input_of(int rank, size_t count) {
  std::vector<float> input(count);
  for (size_t i = 0; i < count; ++i) {
    input[i] = static_cast<float>((i * 2654435761u + static_cast<size_t>(rank) * 40503u) % 100003) / 79190.0f + 0.3f;
  }
  return input;
}

// What `ranks` have after sums of such, as bytes; `on_gpu`: of GPUs 0.
std::string sums(int ranks, bool on_gpu) {
  Result<std::vector<Communicator*>> made = Communicator::init_all(ranks, std::vector<int>(ranks, 0));
  EXPECT_TRUE(made.ok()) << made.status().message();
  std::string bytes;
  for (const size_t count : {5, 3000, 100'000}) {
    std::vector<std::vector<float>> values;
    for (int rank = 0; rank < ranks; ++rank) values.push_back(input_of(rank, count));
    std::vector<std::unique_ptr<GpuMemory>> memory;
    std::vector<std::unique_ptr<GpuStream>> streams;
    group_start();
    for (size_t rank = 0; rank < values.size(); ++rank) {
      CollectiveCall call;
      call.count = count;
      call.send = call.recv = values[rank].data();
      if (on_gpu) {
        memory.push_back(std::make_unique<GpuMemory>(0, values[rank].data(), count * sizeof(float)));
        streams.push_back(std::make_unique<GpuStream>(0));
        call.send = call.recv = memory.back()->at();
        call.stream = streams.back()->get();
      }
      EXPECT_OK((*made)[rank]->submit(call));
    }
    EXPECT_OK(group_end());
    for (size_t rank = 0; rank < memory.size(); ++rank) {
      EXPECT_OK(streams[rank]->wait());
      memory[rank]->read(values[rank].data());
    }
    for (const auto& own : values) bytes.append(reinterpret_cast<const char*>(own.data()), count * sizeof(float));
  }
  on_threads(ranks, [&](int rank) { (void)Communicator::destroy((*made)[static_cast<size_t>(rank)]).ok(); });
  return bytes;
}

TEST_F(GpuHosts, GiveTheHostsBits) {
  constexpr int kRanks = 3;
  if (const char* file = std::getenv("RESULTS_OF_TEST"); file != nullptr) {
    std::ofstream(file, std::ios::binary) << sums(kRanks, /*on_gpu=*/false);
    return;
  }
  const std::string own = sums(kRanks, /*on_gpu=*/true);
  EXPECT_FALSE(own.empty());
  char file[] = "/tmp/theseus-results-XXXXXX";
  close(mkstemp(file));
  const pid_t process = fork();
  if (process == 0) {
    setenv("RESULTS_OF_TEST", file, 1);
    setenv("THESEUS_DEVICE", "host", 1);
    execl("/proc/self/exe", "test_emu", "--gtest_filter=GpuHosts.GiveTheHostsBits", "--gtest_brief=1", nullptr);
    _exit(127);
  }
  int status = -1;
  EXPECT_EQ(waitpid(process, &status, 0), process);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  std::ifstream stream(file, std::ios::binary);
  EXPECT_TRUE(std::string((std::istreambuf_iterator<char>(stream)), {}) == own);
  std::filesystem::remove(file);
}

TEST_F(GpuHosts, MoveMegabytes) {
  GpuRanks ranks({0, 1});
  check<int64_t>(ranks, {Collective::AllReduce, 2, 1 << 20, RedOp::Sum});
  check<float>(ranks, {Collective::AllToAll, 2, 1 << 19});
}

uint64_t bytes_over(int rail) {
  uint64_t bytes = 0;
  for (const FlowSnapshot& flow : snapshot_flows()) bytes += flow.rail == rail ? flow.bytes : 0;
  return bytes;
}

// A transfer goes over the rail that its plan names: built-in ones use all, one from outside says what it likes.
TEST_F(GpuHosts, UseTheRailsOfThePlan) {
  GpuRanks ranks({0, 0});
  const uint64_t before[2] = {bytes_over(0), bytes_over(1)};
  check<int32_t>(ranks, {Collective::AllReduce, 2, 100'000});
  for (const int rail : {0, 1}) EXPECT_GE(bytes_over(rail) - before[rail], 150'000u) << "rail " << rail;

  const Topology topology{{0, 1}, /*rails=*/2};
  Result<Algorithm> ring = build("ring", Collective::AllReduce, topology);
  ASSERT_TRUE(ring.ok()) << ring.status().message();
  for (Transfer& transfer : ring->transfers) transfer.rail = 1;
  Result<Plan> plan = compile(*ring, topology);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  std::vector<LoadedPlan> loaded(2);
  on_threads(2, [&](int rank) {
    Result<LoadedPlan> taken = ranks[rank].load_plan(serialize(*plan));
    EXPECT_TRUE(taken.ok()) << taken.status().message();
    if (taken.ok()) loaded[static_cast<size_t>(rank)] = *taken;
  });
  const uint64_t then[2] = {bytes_over(0), bytes_over(1)};
  check<int32_t>(ranks, {Collective::AllReduce, 2, 100'000}, loaded[0].id);
  EXPECT_EQ(bytes_over(0), then[0]);
  EXPECT_GE(bytes_over(1) - then[1], 300'000u);
}

// Kernels get on though a rail hardly moves: first aid takes its messages over the other one.
TEST_F(GpuHosts, AreHelpedAcrossASickRail) {
  const Settings paced{{"THESEUS_HOST", "proxy-test-paced"}, {"THESEUS_NIC_RATE", "400Mbit"}};
  const auto rescued = [] {
    uint64_t messages = 0;
    for (const FlowSnapshot& flow : snapshot_flows()) messages += flow.rail == 1 ? flow.rescued_messages : 0;
    return messages;
  };
  Result<Pacing*> pacing = Pacing::for_this_host();
  ASSERT_TRUE(pacing.ok() && *pacing != nullptr) << pacing.status().message();
  GpuRanks ranks({0, 0});
  check<int32_t>(ranks, {Collective::AllReduce, 2, 100'000});
  const uint64_t before = rescued();
  (*pacing)->set_rate(1, 50'000);
  check<int32_t>(ranks, {Collective::AllReduce, 2, 300'000});
  EXPECT_GT(rescued(), before);
}

// A captured collective runs whenever its graph does, and others may run between.
TEST_F(GpuHosts, GraphsRunCapturedCollectives) {
  auto& emulator = static_cast<cuda::Emulator&>(driver());
  GpuRanks ranks({0, 1});
  std::vector<int32_t> ones(600, 1), results(600);
  std::vector<std::unique_ptr<GpuMemory>> memory;
  for (int rank = 0; rank < 2; ++rank) {
    memory.push_back(std::make_unique<GpuMemory>(rank, ones.data(), 2400));
    EXPECT_OK(emulator.begin_capture(rank, ranks.stream(rank).get()));
  }
  const auto submit = [&] {
    group_start();
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_OK(ranks[rank].submit(sum_of(*memory[static_cast<size_t>(rank)], 600, ranks.stream(rank).get())));
    }
    EXPECT_OK(group_end());
  };
  submit();
  std::vector<std::shared_ptr<cuda::EmuGraph>> graphs;
  for (int rank = 0; rank < 2; ++rank) {
    auto graph = emulator.end_capture(rank, ranks.stream(rank).get());
    ASSERT_TRUE(graph.ok()) << graph.status().message();
    graphs.push_back(*graph);
  }
  int32_t expected = 1;
  for (int round = 0; round < 3; ++round) {
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_OK(emulator.replay(rank, graphs[static_cast<size_t>(rank)], ranks.stream(rank).get()));
    }
    submit();
    expected *= 4;
  }
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_OK(ranks.stream(rank).wait());
    memory[static_cast<size_t>(rank)]->read(results.data());
    EXPECT_EQ(results, std::vector<int32_t>(600, expected));
  }
}

// A kernel that waits for a host which never comes leaves when its communicator is aborted, and the stream goes on.
TEST_F(GpuHosts, AbortEndsAKernelThatWaits) {
  GpuRanks ranks({0, 0});
  std::vector<int32_t> ones(300'000, 1);
  GpuMemory memory(0, ones.data(), ones.size() * 4);
  EXPECT_OK(ranks[0].submit(sum_of(memory, ones.size(), ranks.stream(0).get())));
  EXPECT_FALSE(ranks.stream(0).idle());
  EXPECT_OK(Communicator::abort(ranks.take(0)));
  EXPECT_OK(ranks.stream(0).wait());
  EXPECT_OK(Communicator::abort(ranks.take(1)));
}

// And when its peer aborts: the news ends the wait, whichever way it comes.
TEST_F(GpuHosts, AKernelLeavesWhenItsPeerAborts) {
  GpuRanks ranks({0, 0});
  std::vector<int32_t> ones(300'000, 1);
  GpuMemory memory[2] = {{0, ones.data(), ones.size() * 4}, {0, ones.data(), ones.size() * 4}};
  EXPECT_OK(ranks.run({sum_of(memory[0], 10, nullptr), sum_of(memory[1], 10, nullptr)}));
  EXPECT_OK(ranks[0].submit(sum_of(memory[0], ones.size(), ranks.stream(0).get())));
  EXPECT_OK(Communicator::abort(ranks.take(1)));
  EXPECT_OK(ranks.stream(0).wait());
  EXPECT_EQ(ranks[0].async_error().code(), Code::RemoteError) << ranks[0].async_error().message();
  EXPECT_OK(Communicator::abort(ranks.take(0)));
}

// Ranks in different calls find out, and say so.
TEST_F(GpuHosts, MismatchedCallsAreNamed) {
  GpuRanks ranks({0, 0});
  std::vector<int32_t> ones(1000, 1);
  GpuMemory memory[2] = {{0, ones.data(), 4000}, {0, ones.data(), 4000}};
  on_threads(2, [&](int rank) {
    EXPECT_OK(ranks[rank].submit(sum_of(memory[rank], rank == 0 ? 10 : 12, ranks.stream(rank).get())));
  });
  Status first;
  while (first.ok()) {
    for (int rank = 0; rank < 2 && first.ok(); ++rank) first = ranks[rank].async_error();
  }
  EXPECT_NE(first.message().find("mismatched calls"), std::string::npos) << first.message();
  for (int rank = 0; rank < 2; ++rank) EXPECT_OK(Communicator::abort(ranks.take(rank)));
}

// Who is done may leave while another still takes what was sent to it.
TEST_F(GpuHosts, ARootMayLeaveBeforeItsMessagesAreTaken) {
  GpuRanks ranks({0, 0});
  const CollectiveCase test{Collective::Broadcast, 2, 20'000};
  GpuBuffers<int32_t> root(test, 0, 0), leaf(test, 1, 0);
  CollectiveCall call = root.call(test);
  call.stream = ranks.stream(0).get();
  EXPECT_OK(ranks[0].submit(call));
  EXPECT_OK(Communicator::destroy(ranks.take(0)));
  call = leaf.call(test);
  call.stream = ranks.stream(1).get();
  EXPECT_OK(ranks[1].submit(call));
  EXPECT_OK(ranks.stream(1).wait());
  EXPECT_EQ(leaf.difference(), "");
}

// --- Ranks that are processes, two on each virtual host.

void on_host(int host) {
  setenv("THESEUS_HOST", ("proxy-test-" + std::to_string(host)).c_str(), 1);
  setenv("THESEUS_NICS", ("127.0." + std::to_string(host + 1) + ".1,127.0." + std::to_string(host + 1) + ".2").c_str(),
         1);
  reload_settings();
}

TEST(GpuHostProcesses, ShareMemoryInsideAHostAndSendBetweenHosts) {
  constexpr int kRanks = 4;
  in_processes(kRanks, [](const UniqueId& id, int rank) {
    on_host(rank / 2);
    const int device = rank % 2;
    EXPECT_OK(driver().set_current_device(device));
    Result<Communicator*> made = Communicator::init(id, kRanks, rank, {});
    ASSERT_TRUE(made.ok()) << made.status().message();
    {
      GpuStream stream(device);
      for (const Collective collective : kCollectives) {
        for (const size_t count : {1, 5000, 300'000}) {
          const CollectiveCase test{collective, kRanks, count, RedOp::Sum, 1};
          GpuBuffers<int32_t> buffers(test, rank, device);
          CollectiveCall call = buffers.call(test);
          call.stream = stream.get();
          EXPECT_OK((*made)->submit(call));
          EXPECT_OK(stream.wait());
          EXPECT_EQ(buffers.difference(), "");
        }
      }
      EXPECT_OK((*made)->barrier());
    }
    EXPECT_OK(Communicator::destroy(*made));
  });
}

// The kernel of a rank whose peer on another host was killed leaves, and the communicator says who is gone.
TEST(GpuHostProcesses, ADeadPeerEndsTheKernelThatWaits) {
  in_processes(
      2,
      [](const UniqueId& id, int rank) {
        on_host(rank);
        Result<Communicator*> made = Communicator::init(id, 2, rank, {});
        ASSERT_TRUE(made.ok()) << made.status().message();
        EXPECT_OK((*made)->barrier());
        GpuStream stream(0);
        const CollectiveCase test{Collective::AllReduce, 2, 500'000};
        GpuBuffers<int32_t> buffers(test, rank, 0);
        CollectiveCall call = buffers.call(test);
        call.stream = stream.get();
        if (rank == 1) (void)raise(SIGKILL);
        (void)(*made)->submit(call).ok();  // refused where the news came first
        EXPECT_OK(stream.wait());
        EXPECT_EQ((*made)->async_error().code(), Code::RemoteError) << (*made)->async_error().message();
        EXPECT_OK(Communicator::abort(*made));
      },
      /*killed=*/1);
}

}  // namespace
}  // namespace theseus
