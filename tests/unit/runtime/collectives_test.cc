// Every collective of a communicator whose ranks are threads, against the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "rank_threads.h"
#include "unit/collectives.h"

namespace theseus {
namespace {

using testing::CollectiveCase;
using testing::RankBuffers;
using testing::Ranks;

template <class T>
CollectiveCall call_of(const CollectiveCase& test, RankBuffers<T>& buffers) {
  CollectiveCall call;
  call.collective = test.collective;
  call.send = buffers.send();
  call.recv = buffers.recv();
  call.count = test.count;
  call.type = testing::type_of<T>();
  call.op = static_cast<int>(test.op);
  call.root = test.root;
  return call;
}

template <class T>
void check(Communicator& communicator, const CollectiveCase& test) {
  RankBuffers<T> buffers(test, communicator.rank());
  EXPECT_OK(communicator.submit(call_of(test, buffers)));
  EXPECT_EQ(buffers.difference(), "");
}

constexpr Collective kCollectivesWithPlans[] = {Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter,
                                                Collective::Broadcast, Collective::Reduce,    Collective::AllToAll,
                                                Collective::Gather,    Collective::Scatter};

class Collectives : public ::testing::TestWithParam<int> {};

// Every collective gives the reference's result, out of place and in place, small and large, for every root, again and
// again on the same communicator.
TEST_P(Collectives, GiveTheReferencesResult) {
  Ranks ranks(GetParam());
  ranks.run([&](Communicator& communicator) {
    for (const Collective collective : kCollectivesWithPlans) {
      for (const size_t count : {1, 13, 70000}) {
        for (const bool in_place : {false, true}) {
          if (in_place && collective == Collective::AllToAll) continue;
          CollectiveCase test{collective, ranks.size(), count};
          test.in_place = in_place;
          test.root = (static_cast<int>(count) + in_place) % ranks.size();
          check<int32_t>(communicator, test);
          check<double>(communicator, test);
        }
      }
    }
  });
}

// Every reduction, on types of one to eight bytes.
TEST_P(Collectives, ReduceWithEveryOperation) {
  Ranks ranks(GetParam());
  ranks.run([&](Communicator& communicator) {
    for (const Collective collective : {Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce}) {
      for (const RedOp op : {RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min}) {
        const CollectiveCase test{collective, ranks.size(), 37, op};
        check<uint8_t>(communicator, test);
        check<int64_t>(communicator, test);
        check<float>(communicator, test);
      }
    }
  });
}

// Averages divide what the ranks' sum is; the factor of a PreMulSum is each rank's own.
TEST_P(Collectives, AverageAndScale) {
  Ranks ranks(GetParam());
  ranks.run([&](Communicator& communicator) {
    const int n = ranks.size();
    CollectiveCall call;
    std::vector<int32_t> whole(33, 4 * communicator.rank());
    call.send = call.recv = whole.data();
    call.count = whole.size();
    call.type = DataType::Int32;
    call.op = static_cast<int>(RedOp::Avg);
    EXPECT_OK(communicator.submit(call));
    EXPECT_EQ(whole, std::vector<int32_t>(33, 4 * (n - 1) / 2));

    const float factor = static_cast<float>(communicator.rank() + 1);
    Result<int> op = communicator.create_premulsum(DataType::Float32, &factor);
    ASSERT_TRUE(op.ok()) << op.status().message();
    std::vector<float> scaled(5000, 2);
    call.send = call.recv = scaled.data();
    call.count = scaled.size();
    call.type = DataType::Float32;
    call.op = *op;
    EXPECT_OK(communicator.submit(call));
    EXPECT_EQ(scaled, std::vector<float>(5000, static_cast<float>(n * (n + 1))));
    EXPECT_OK(communicator.destroy_op(*op));
    EXPECT_EQ(communicator.submit(call).code(), Code::InvalidArgument);
  });
}

// An all-to-all may have splits of any size, some of them empty.
TEST_P(Collectives, ExchangeUnevenSplits) {
  Ranks ranks(GetParam());
  ranks.run([&](Communicator& communicator) {
    const size_t n = static_cast<size_t>(ranks.size());
    const auto split = [](size_t from, size_t to) { return from * to % 3 * 1000 + (from + 2 * to) % 4; };
    const size_t me = static_cast<size_t>(communicator.rank());
    std::vector<size_t> send_counts(n), send_offsets(n), recv_counts(n), recv_offsets(n);
    size_t sent = 0, received = 0;
    for (size_t rank = 0; rank < n; ++rank) {
      send_counts[rank] = split(me, rank);
      recv_counts[rank] = split(rank, me);
      send_offsets[rank] = std::exchange(sent, sent + send_counts[rank]);
      recv_offsets[rank] = std::exchange(received, received + recv_counts[rank]);
    }
    std::vector<int32_t> send(sent + 1), recv(received + 1, -1);
    for (size_t rank = 0; rank < n; ++rank) {
      std::fill_n(send.begin() + static_cast<std::ptrdiff_t>(send_offsets[rank]), send_counts[rank],
                  static_cast<int32_t>(me * 100 + rank));
    }
    AllToAllVCall call{send.data(),        send_counts.data(),  send_offsets.data(), recv.data(),
                       recv_counts.data(), recv_offsets.data(), DataType::Int32};
    EXPECT_OK(communicator.all_to_all_v(call));
    for (size_t rank = 0; rank < n; ++rank) {
      for (size_t i = 0; i < recv_counts[rank]; ++i) {
        ASSERT_EQ(recv[recv_offsets[rank] + i], static_cast<int32_t>(rank * 100 + me));
      }
    }
  });
}

// A barrier lets nobody pass before everybody has come.
TEST_P(Collectives, BarrierWaitsForAll) {
  Ranks ranks(GetParam());
  std::atomic<int> arrived{0};
  ranks.run([&](Communicator& communicator) {
    for (int round = 1; round <= 50; ++round) {
      arrived.fetch_add(1);
      EXPECT_OK(communicator.barrier());
      EXPECT_GE(arrived.load(), round * ranks.size());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, ::testing::Values(1, 2, 3, 5, 8));

// Buffers that peers can map behave like any others, whole or in part.
TEST(SharedBuffers, WorkInCollectives) {
  Ranks ranks(3);
  ranks.run([&](Communicator& communicator) {
    constexpr size_t kCount = 100'000;
    Result<void*> memory = mem_alloc((kCount + 1) * sizeof(float));
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    float* values = static_cast<float*>(*memory) + 1;
    std::fill_n(values, kCount, static_cast<float>(communicator.rank()));
    CollectiveCall call;
    call.send = call.recv = values;
    call.count = kCount;
    EXPECT_OK(communicator.submit(call));
    EXPECT_EQ(std::count(values, values + kCount, 3.f), static_cast<std::ptrdiff_t>(kCount));
    EXPECT_OK(communicator.barrier());
    EXPECT_OK(mem_free(*memory));
  });
}

// Arguments that make no sense are refused before anything is sent, and the communicator goes on working.
TEST(Arguments, AreCheckedBeforeAnythingMoves) {
  Ranks ranks(2);
  ranks.run([&](Communicator& communicator) {
    std::vector<float> data(8);
    CollectiveCall good;
    good.send = good.recv = data.data();
    good.count = 4;
    std::vector<CollectiveCall> bad(6, good);
    bad[0].send = nullptr;
    bad[1].recv = data.data() + 1;  // overlaps in part
    bad[2].type = static_cast<DataType>(12);
    bad[3].op = 77;
    bad[4].collective = Collective::Broadcast;
    bad[4].root = 2;
    bad[5].count = SIZE_MAX / 4;
    for (const CollectiveCall& call : bad) {
      const Status status = communicator.submit(call);
      EXPECT_EQ(status.code(), Code::InvalidArgument) << status.message();
      EXPECT_FALSE(status.message().empty());
    }
    EXPECT_EQ(communicator.send(data.data(), 1, DataType::Float32, 2).code(), Code::InvalidArgument);
    EXPECT_EQ(communicator.recv(nullptr, 1, DataType::Float32, 1 - communicator.rank()).code(), Code::InvalidArgument);
    EXPECT_OK(communicator.submit(good));
    EXPECT_OK(communicator.async_error());
  });
}

class Mismatch : public ::testing::TestWithParam<size_t> {};

// Ranks that make different calls all learn of it, however the sizes differ, and at least one message names both calls.
TEST_P(Mismatch, IsNamed) {
  Ranks ranks(2);
  std::vector<std::string> messages(2);
  ranks.run([&](Communicator& communicator) {
    std::vector<float> data(GetParam());
    CollectiveCall call;
    call.send = call.recv = data.data();
    call.count = communicator.rank() == 0 ? 32 : GetParam();
    const Status status = communicator.submit(call);
    EXPECT_FALSE(status.ok());
    EXPECT_FALSE(communicator.async_error().ok());
    EXPECT_FALSE(communicator.barrier().ok()) << "a failed communicator runs nothing";
    messages[static_cast<size_t>(communicator.rank())] = status.message();
  });
  const std::string both = messages[0] + messages[1];
  EXPECT_NE(both.find("of 32 float32"), std::string::npos) << both;
  EXPECT_NE(both.find("of " + std::to_string(GetParam()) + " float32"), std::string::npos) << both;
}

INSTANTIATE_TEST_SUITE_P(Sizes, Mismatch, ::testing::Values(64, 10'000, 1'000'000));

}  // namespace
}  // namespace theseus
