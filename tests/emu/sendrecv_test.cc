// Sends, receives and uneven all-to-all on emulated GPUs: what arrives is what left, bit for bit as on the host, in
// whatever order the calls come.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "mail.h"

namespace theseus {
namespace {

using testing::Buffer;
using testing::Bytes;
using testing::check_graphs;
using testing::devices_for;
using testing::driver;
using testing::Exchanges;
using testing::GpuMemory;
using testing::GpuRanks;
using testing::GpuStream;
using testing::Mail;
using testing::Mails;
using testing::message;
using testing::on_threads;

// ---- Values ----

// Each type, at and around the sizes where a message changes its way: none, short ones in lines, a slot's worth,
// several slots; wherever in memory its elements may lie.
TEST(GpuSendRecv, CarriesAllTypesAndSizes) {
  GpuRanks ranks({0, 1});
  for (int type = 0; type < kDataTypes; ++type) {
    const size_t element = size_of(static_cast<DataType>(type));
    const size_t line = 4096 / element, slot = (128 << 10) / element;
    int turn = 0;
    for (const size_t count : {size_t{0}, size_t{1}, size_t{3}, line - 16 / element, line - 16 / element + 1,
                               slot - 16 / element, slot - 16 / element + 1, 2 * slot + 5}) {
      const Bytes right = message(type, 0, turn, count * element);
      Buffer out(0, right, turn % 3 * element), in(1, Bytes(right.size(), 0), turn % 2 * element);
      ++turn;
      group_start();
      EXPECT_OK(ranks[1].recv(in.at(), count, static_cast<DataType>(type), 0, ranks.stream(1).get()));
      EXPECT_OK(ranks[0].send(out.at(), count, static_cast<DataType>(type), 1, ranks.stream(0).get()));
      EXPECT_OK(group_end());
      EXPECT_OK(ranks.stream(0).wait());
      EXPECT_OK(ranks.stream(1).wait());
      ASSERT_TRUE(in.read() == right) << count << " of " << name_of(static_cast<DataType>(type));
    }
  }
}

// Large transfers are dealt to several links, and small ones among them keep their place.
TEST(GpuSendRecv, DealsLargeTransfersToSeveralLinks) {
  GpuRanks ranks({0, 0});
  Mails mails(ranks);
  const size_t sizes[] = {5 << 20, 10, (2 << 20) + 3, 0, 200'000, 9 << 20, 4000};
  group_start();
  for (int turn = 0; turn < 7; ++turn) EXPECT_OK(mails[0].send(ranks[0], 1, turn, sizes[turn], ranks.stream(0).get()));
  for (int turn = 0; turn < 7; ++turn) EXPECT_OK(mails[1].recv(ranks[1], 0, turn, sizes[turn], ranks.stream(1).get()));
  EXPECT_OK(group_end());
  mails.finish();
}

// Rank after rank, round and round; one rank alone talks to itself.
TEST(GpuSendRecv, GoesRoundRings) {
  for (int size = 1; size <= 5; ++size) {
    GpuRanks ranks(devices_for(size));
    Mails mails(ranks);
    for (int turn = 0; turn < 6; ++turn) {
      const size_t bytes = size_t{1} << (turn * 4);
      group_start();
      for (int rank = 0; rank < size; ++rank) {
        const cuda::Stream stream = ranks.stream(rank).get();
        EXPECT_OK(mails[rank].send(ranks[rank], (rank + 1) % size, turn, bytes, stream));
        EXPECT_OK(mails[rank].recv(ranks[rank], (rank + size - 1) % size, turn, bytes, stream));
      }
      EXPECT_OK(group_end());
    }
    mails.finish();
  }
}

// Everybody sends to everybody, itself included, several messages, and asks for them in an order of its own: those of
// one pair keep theirs. More calls than fit into a launch's parameters.
TEST(GpuSendRecv, AnyOrderOfCallsWillDo) {
  constexpr int kSize = 4;
  constexpr int kTurns = 5;
  const size_t sizes[kTurns] = {3000, 0, 150'000, 8, 5000};
  GpuRanks ranks(devices_for(kSize));
  Mails mails(ranks);
  on_threads(kSize, [&](int rank) {
    struct Call {
      bool sends;
      int peer;
    };
    std::vector<Call> calls;
    for (int peer = 0; peer < kSize; ++peer) {
      for (int turn = 0; turn < kTurns; ++turn) {
        calls.push_back({true, peer});
        calls.push_back({false, peer});
      }
    }
    std::shuffle(calls.begin(), calls.end(), std::mt19937_64(static_cast<uint64_t>(rank)));
    std::map<std::pair<bool, int>, int> turns;
    const cuda::Stream stream = ranks.stream(rank).get();
    group_start();
    for (const Call& call : calls) {
      const int turn = turns[{call.sends, call.peer}]++;
      EXPECT_OK(call.sends ? mails[rank].send(ranks[rank], call.peer, turn, sizes[turn], stream)
                           : mails[rank].recv(ranks[rank], call.peer, turn, sizes[turn], stream));
    }
    EXPECT_OK(group_end());
  });
  mails.finish();
}

// Calls outside groups, each a launch: what was sent waits for whoever comes later.
TEST(GpuSendRecv, RunsOutsideGroups) {
  GpuRanks ranks({0, 0});
  Mails mails(ranks);
  on_threads(2, [&](int rank) {
    const cuda::Stream stream = ranks.stream(rank).get();
    for (int turn = 0; turn < 40; ++turn) {
      const size_t bytes = static_cast<size_t>(turn) * 700;
      if ((turn + rank) % 2 == 0) {
        EXPECT_OK(mails[rank].send(ranks[rank], 1 - rank, turn, bytes, stream));
      } else {
        EXPECT_OK(mails[rank].recv(ranks[rank], 1 - rank, turn, bytes, stream));
      }
    }
  });
  mails.finish();
}

// More peers than thread blocks that this GPU can run: each serves several, and nobody waits for ever.
TEST(GpuSendRecv, FewThreadBlocksServeManyPeers) {
  constexpr int kSize = 9;  // on one emulated GPU, which has 32 thread blocks
  GpuRanks ranks(std::vector<int>(kSize, 0));
  Mails mails(ranks);
  for (const size_t bytes : {size_t{64}, size_t{300'000}}) {
    group_start();
    for (int rank = 0; rank < kSize; ++rank) {
      for (int peer = kSize - 1; peer >= 0; --peer) {
        EXPECT_OK(mails[rank].send(ranks[rank], peer, 0, bytes, ranks.stream(rank).get()));
      }
      for (int peer = 0; peer < kSize; ++peer) {
        EXPECT_OK(mails[rank].recv(ranks[rank], peer, 0, bytes, ranks.stream(rank).get()));
      }
    }
    EXPECT_OK(group_end());
  }
  mails.finish();
}

TEST(GpuAllToAllV, CarriesUnevenSplits) {
  for (int size = 1; size <= 5; ++size) {
    GpuRanks ranks(devices_for(size));
    std::vector<Exchanges> exchanges;
    for (int rank = 0; rank < size; ++rank) exchanges.emplace_back(ranks.device(rank));
    on_threads(size, [&](int rank) {
      for (const size_t unit : {1, 33, 40'000}) {
        exchanges[static_cast<size_t>(rank)].submit(ranks[rank], unit, ranks.stream(rank).get());
      }
      EXPECT_OK(ranks.stream(rank).wait());
    });
    for (Exchanges& each : exchanges) each.check();
  }
}

// ---- Streams, groups, graphs ----

// A call returns when it is queued, and takes its place in the stream.
TEST(GpuSendRecv, CallsTakeTheirPlaceInTheStream) {
  GpuRanks ranks({0, 0});
  Mails mails(ranks);
  std::atomic<bool> open{false};
  const auto wait_for_it = [](void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
  };
  EXPECT_OK(driver().call_host(0, ranks.stream(0).get(), wait_for_it, &open));
  EXPECT_OK(mails[0].send(ranks[0], 1, 0, 5000, ranks.stream(0).get()));
  EXPECT_OK(mails[1].recv(ranks[1], 0, 0, 5000, ranks.stream(1).get()));
  EXPECT_FALSE(ranks.stream(0).idle());
  EXPECT_FALSE(ranks.stream(1).idle());
  open.store(true);
  mails.finish();
}

// The calls of one group may name several streams: the group waits for all of them, and all of them for it.
TEST(GpuSendRecv, AGroupMaySpanStreams) {
  GpuRanks ranks({0, 0});
  GpuStream other(0);
  Mails mails(ranks);
  std::atomic<bool> open{false};
  const auto wait_for_it = [](void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
  };
  EXPECT_OK(driver().call_host(0, other.get(), wait_for_it, &open));
  group_start();
  EXPECT_OK(mails[0].send(ranks[0], 1, 0, 5000, ranks.stream(0).get()));
  EXPECT_OK(mails[0].recv(ranks[0], 1, 0, 6000, other.get()));
  EXPECT_OK(mails[1].send(ranks[1], 0, 0, 6000, ranks.stream(1).get()));
  EXPECT_OK(mails[1].recv(ranks[1], 0, 0, 5000, ranks.stream(1).get()));
  EXPECT_OK(group_end());
  EXPECT_FALSE(ranks.stream(0).idle());
  open.store(true);
  EXPECT_OK(other.wait());
  mails[0].check();  // what came is there, though only the other stream was waited for
  mails.finish();
}

// Transfers of one communicator run in the order of the calls, whatever streams they are on, among its collectives.
TEST(GpuSendRecv, SharesStreamsWithCollectives) {
  GpuRanks ranks({0, 1});
  GpuStream other[2] = {GpuStream(0), GpuStream(1)};
  Mails mails(ranks);
  std::vector<int32_t> ones(3000, 1), results(3000);
  GpuMemory memory[2] = {{0, ones.data(), 12000}, {1, ones.data(), 12000}};
  constexpr int kRounds = 6;
  on_threads(2, [&](int rank) {
    for (int round = 0; round < kRounds; ++round) {
      CollectiveCall sum;
      sum.send = sum.recv = memory[rank].at();
      sum.count = 3000;
      sum.type = DataType::Int32;
      sum.stream = round % 2 == 0 ? ranks.stream(rank).get() : other[rank].get();
      const cuda::Stream stream = round % 3 == 0 ? ranks.stream(rank).get() : other[rank].get();
      if (round % 2 == 0) group_start();
      const size_t bytes = size_t{1} << (2 * round);
      EXPECT_OK(rank == 0 ? mails[0].send(ranks[0], 1, round, bytes, stream)
                          : mails[1].recv(ranks[1], 0, round, bytes, stream));
      EXPECT_OK(ranks[rank].submit(sum));
      if (round % 2 == 0) EXPECT_OK(group_end());
    }
    EXPECT_OK(other[rank].wait());
  });
  mails.finish();
  for (GpuMemory& each : memory) {
    each.read(results.data());
    EXPECT_EQ(results, std::vector<int32_t>(3000, 1 << kRounds));
  }
}

// Two communicators in one group, on one stream of each rank, in the same order everywhere.
TEST(GpuSendRecv, AGroupMaySpanCommunicators) {
  GpuRanks first({0, 1}), second({0, 1});
  Mails mails(first), others(second);
  on_threads(2, [&](int rank) {
    const cuda::Stream stream = first.stream(rank).get();
    for (int turn = 0; turn < 10; ++turn) {
      const bool swapped = turn % 2 == 1;
      for (int half = 0; half < 2; ++half) {
        if (half == 0) group_start();
        const bool is_first = (half == 0) != swapped;
        Communicator& communicator = is_first ? first[rank] : second[rank];
        Mail& mail = is_first ? mails[rank] : others[rank];
        EXPECT_OK(mail.recv(communicator, 1 - rank, turn, 3000, stream));
        EXPECT_OK(mail.send(communicator, 1 - rank, turn, 3000, stream));
      }
      EXPECT_OK(group_end());
    }
    EXPECT_OK(first.stream(rank).wait());
  });
  mails.finish();
  others.finish();
}

TEST(GpuSendRecv, GraphsRunCapturedGroups) { check_graphs(); }

}  // namespace
}  // namespace theseus
