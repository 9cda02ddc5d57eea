// When requests on GPUs run, and how they end: streams, groups, aborts, refusals.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "drivers/cuda/emu.h"
#include "gpu_ranks.h"

namespace theseus {
namespace {

using testing::driver;
using testing::GpuMemory;
using testing::GpuRanks;
using testing::GpuStream;
using testing::on_threads;

CollectiveCall sum_of(GpuMemory& memory, size_t count, cuda::Stream stream) {
  CollectiveCall call;
  call.send = call.recv = memory.at();
  call.count = count;
  call.type = DataType::Int32;
  call.stream = stream;
  return call;
}

// A call returns when it is queued, takes its place in the stream, and a stream that is not there yet keeps it waiting.
TEST(GpuOrder, CallsTakeTheirPlaceInTheStream) {
  GpuRanks ranks({0, 0});
  std::atomic<bool> open{false};
  const auto wait_for_it = [](void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
  };
  std::vector<int32_t> ones(1000, 1), results(1000);
  GpuMemory first(0, ones.data(), 4000), second(0, ones.data(), 4000);
  EXPECT_OK(driver().call_host(0, ranks.stream(0).get(), wait_for_it, &open));
  group_start();
  EXPECT_OK(ranks[0].submit(sum_of(first, 1000, ranks.stream(0).get())));
  EXPECT_OK(ranks[1].submit(sum_of(second, 1000, ranks.stream(1).get())));
  EXPECT_OK(group_end());
  EXPECT_FALSE(ranks.stream(0).idle());
  open.store(true);
  EXPECT_OK(ranks.stream(0).wait());
  EXPECT_OK(ranks.stream(1).wait());
  first.read(results.data());
  EXPECT_EQ(results, std::vector<int32_t>(1000, 2));
}

// Requests of one communicator run in the order of the calls, whatever streams they are on.
TEST(GpuOrder, RequestsOnTwoStreamsRunOneAfterTheOther) {
  GpuRanks ranks({0, 0});
  GpuStream other[2] = {GpuStream(0), GpuStream(0)};
  std::vector<int32_t> ones(5000, 1), results(5000);
  GpuMemory memory[2] = {{0, ones.data(), 20000}, {0, ones.data(), 20000}};
  constexpr int kRounds = 12;
  for (int round = 0; round < kRounds; ++round) {
    group_start();
    for (int rank = 0; rank < 2; ++rank) {
      const cuda::Stream stream = round % 2 == 0 ? ranks.stream(rank).get() : other[rank].get();
      EXPECT_OK(ranks[rank].submit(sum_of(memory[rank], 5000, stream)));
    }
    EXPECT_OK(group_end());
  }
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_OK(ranks.stream(rank).wait());
    EXPECT_OK(other[rank].wait());
    memory[rank].read(results.data());
    EXPECT_EQ(results, std::vector<int32_t>(5000, 1 << kRounds));
  }
}

// A group may hold several collectives of a communicator, of several kinds.
TEST(GpuOrder, AGroupHoldsSeveralCollectives) {
  GpuRanks ranks({0, 1});
  std::vector<int32_t> ones(600, 1), results(600);
  std::vector<std::unique_ptr<GpuMemory>> sums, others;
  group_start();
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<int32_t> own(600, rank);
    sums.push_back(std::make_unique<GpuMemory>(rank, ones.data(), 2400));
    others.push_back(std::make_unique<GpuMemory>(rank, own.data(), 2400));
    EXPECT_OK(ranks[rank].submit(sum_of(*sums.back(), 600, ranks.stream(rank).get())));
    CollectiveCall broadcast = sum_of(*others.back(), 600, ranks.stream(rank).get());
    broadcast.collective = Collective::Broadcast;
    broadcast.root = 1;
    EXPECT_OK(ranks[rank].submit(broadcast));
  }
  EXPECT_OK(group_end());
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_OK(ranks.stream(rank).wait());
    sums[static_cast<size_t>(rank)]->read(results.data());
    EXPECT_EQ(results, std::vector<int32_t>(600, 2));
    others[static_cast<size_t>(rank)]->read(results.data());
    EXPECT_EQ(results, ones);
  }
}

// A collective that is captured into a graph runs whenever the graph does, and others may run between.
TEST(GpuOrder, GraphsRunCapturedCollectives) {
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

// No rank passes a barrier before all have come.
TEST(GpuOrder, BarrierWaitsForAll) {
  GpuRanks ranks({0, 1});
  std::atomic<int> arrived{0};
  on_threads(2, [&](int rank) {
    for (int round = 1; round <= 5; ++round) {
      arrived.fetch_add(1);
      EXPECT_OK(ranks[rank].barrier());
      EXPECT_GE(arrived.load(), 2 * round);
    }
  });
}

// A kernel whose peer never comes leaves when its communicator is aborted, and the stream goes on.
TEST(GpuFailure, AbortEndsAKernelThatWaits) {
  GpuRanks ranks({0, 0});
  std::vector<int32_t> ones(1000, 1);
  GpuMemory memory(0, ones.data(), 4000);
  EXPECT_OK(ranks[0].submit(sum_of(memory, 1000, ranks.stream(0).get())));
  EXPECT_FALSE(ranks.stream(0).idle());
  EXPECT_OK(Communicator::abort(ranks.take(0)));
  EXPECT_OK(ranks.stream(0).wait());
  EXPECT_OK(Communicator::abort(ranks.take(1)));
}

// Ranks in different calls find out, and say so.
TEST(GpuFailure, MismatchedCallsAreNamed) {
  GpuRanks ranks({0, 0});
  std::vector<int32_t> ones(1000, 1);
  GpuMemory memory[2] = {{0, ones.data(), 4000}, {0, ones.data(), 4000}};
  on_threads(2, [&](int rank) {
    const size_t count = rank == 0 ? 10 : 12;
    EXPECT_OK(ranks[rank].submit(sum_of(memory[rank], count, ranks.stream(rank).get())));
  });
  Status first;
  while (first.ok()) {
    for (int rank = 0; rank < 2 && first.ok(); ++rank) first = ranks[rank].async_error();
  }
  EXPECT_NE(first.message().find("mismatched calls"), std::string::npos) << first.message();
  for (int rank = 0; rank < 2; ++rank) EXPECT_OK(Communicator::abort(ranks.take(rank)));
}

// A plan whose thread blocks cannot all run at once would wait for itself: it is refused before it is launched.
TEST(GpuFailure, TooManyThreadBlocksAreRefused) {
  constexpr int kRanks = 7;  // on one GPU, with six peers each
  GpuRanks ranks(std::vector<int>(kRanks, 0));
  std::vector<int32_t> ones(64 * kRanks, 1);
  std::vector<std::unique_ptr<GpuMemory>> memory;
  std::vector<CollectiveCall> calls;
  for (int rank = 0; rank < kRanks; ++rank) {
    memory.push_back(std::make_unique<GpuMemory>(0, ones.data(), ones.size() * 4));
    memory.push_back(std::make_unique<GpuMemory>(0, ones.data(), ones.size() * 4));
    CollectiveCall call = sum_of(*memory.back(), 64, nullptr);
    call.collective = Collective::AllToAll;
    call.send = memory[memory.size() - 2]->at();
    calls.push_back(call);
  }
  const Status status = ranks.run(calls);
  EXPECT_EQ(status.code(), Code::InvalidUsage);
  EXPECT_NE(status.message().find("thread blocks"), std::string::npos) << status.message();
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_OK(Communicator::abort(ranks.take(rank)));
}

// Ranks of one communicator on one stream would wait for each other for ever.
TEST(GpuFailure, OneStreamForTwoRanksIsRefused) {
  GpuRanks ranks({0, 0});
  std::vector<int32_t> ones(10, 1);
  GpuMemory memory[2] = {{0, ones.data(), 40}, {0, ones.data(), 40}};
  group_start();
  for (int rank = 0; rank < 2; ++rank) EXPECT_OK(ranks[rank].submit(sum_of(memory[rank], 10, ranks.stream(0).get())));
  const Status status = group_end();
  EXPECT_EQ(status.code(), Code::InvalidUsage);
  EXPECT_NE(status.message().find("same stream"), std::string::npos) << status.message();
  for (int rank = 0; rank < 2; ++rank) EXPECT_OK(Communicator::abort(ranks.take(rank)));
}

// A pointer to ordinary memory is refused at the call.
TEST(GpuFailure, HostMemoryIsRefused) {
  GpuRanks ranks({0});
  std::vector<int32_t> ones(10, 1);
  GpuMemory memory(0, ones.data(), 40);
  CollectiveCall call = sum_of(memory, 10, ranks.stream(0).get());
  call.send = ones.data();
  const Status status = ranks[0].submit(call);
  EXPECT_EQ(status.code(), Code::InvalidArgument);
  EXPECT_NE(status.message().find("sendbuff"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace theseus
