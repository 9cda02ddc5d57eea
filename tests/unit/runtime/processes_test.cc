// Communicators whose ranks are processes: memory that is really shared, and real ends.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

#include "rank_processes.h"
#include "unit/collectives.h"

namespace theseus {
namespace {

using testing::CollectiveCase;
using testing::in_processes;
using testing::RankBuffers;
using testing::sum_of_ranks;

Communicator* join(const UniqueId& id, int ranks, int rank) {
  Result<Communicator*> made = Communicator::init(id, ranks, rank, {});
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? *made : nullptr;
}

// Every collective gives the reference's result between processes, at sizes that take every way through memory.
TEST(Processes, CollectivesGiveTheReferencesResult) {
  in_processes(3, [](const UniqueId& id, int rank) {
    Communicator* communicator = join(id, 3, rank);
    ASSERT_NE(communicator, nullptr);
    for (const Collective collective : {Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter,
                                        Collective::Broadcast, Collective::Reduce, Collective::AllToAll}) {
      for (const size_t count : {1, 12, 5000, 60'000, 400'000}) {
        const CollectiveCase test{collective, 3, count, RedOp::Sum, 1};
        RankBuffers<int32_t> buffers(test, rank);
        CollectiveCall call{collective, buffers.send(), buffers.recv(), count, DataType::Int32, 0, 1};
        EXPECT_OK(communicator->submit(call));
        EXPECT_EQ(buffers.difference(), "");
      }
    }
    EXPECT_OK(Communicator::destroy(communicator));
  });
}

// Buffers of mem_alloc are mapped by their peers, request after request, and may be freed between.
TEST(Processes, MapEachOthersBuffers) {
  in_processes(2, [](const UniqueId& id, int rank) {
    Communicator* communicator = join(id, 2, rank);
    ASSERT_NE(communicator, nullptr);
    for (int round = 0; round < 5; ++round) {
      constexpr size_t kCount = 100'000;
      Result<void*> memory = mem_alloc(kCount * sizeof(float));
      ASSERT_TRUE(memory.ok()) << memory.status().message();
      auto* values = static_cast<float*>(*memory);
      std::fill_n(values, kCount, static_cast<float>(rank + round));
      CollectiveCall call;
      call.send = call.recv = values;
      call.count = kCount;
      EXPECT_OK(communicator->submit(call));
      EXPECT_EQ(std::count(values, values + kCount, static_cast<float>(2 * round + 1)),
                static_cast<std::ptrdiff_t>(kCount));
      EXPECT_OK(communicator->barrier());
      EXPECT_OK(mem_free(*memory));
    }
    EXPECT_OK(Communicator::destroy(communicator));
  });
}

// When a process is killed, the calls of all others end with RemoteError, and the survivors can go on together.
TEST(Processes, SurviveThatOneIsKilled) {
  in_processes(
      3,
      [](const UniqueId& id, int rank) {
        Communicator* communicator = join(id, 3, rank);
        ASSERT_NE(communicator, nullptr);
        EXPECT_EQ(sum_of_ranks(*communicator), 6);
        if (rank == 1) raise(SIGKILL);
        Status status;
        while (status.ok()) status = communicator->barrier();
        EXPECT_EQ(status.code(), Code::RemoteError) << status.message();
        EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.message();
        Result<Communicator*> made = communicator->shrink({1}, nullptr, true);
        ASSERT_TRUE(made.ok()) << made.status().message();
        EXPECT_EQ(sum_of_ranks(**made), 3);
        EXPECT_OK(Communicator::destroy(*made));
        EXPECT_OK(Communicator::destroy(communicator));
      },
      1);
}

}  // namespace
}  // namespace theseus
