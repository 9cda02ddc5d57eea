// Groups and point-to-point calls.
#include <gtest/gtest.h>

#include <numeric>

#include "rank_threads.h"

namespace theseus {
namespace {

using testing::on_threads;
using testing::Ranks;
using testing::sum_of_ranks;
using testing::sum_up_to;

CollectiveCall all_reduce(std::vector<int64_t>& data) {
  CollectiveCall call;
  call.send = call.recv = data.data();
  call.count = data.size();
  call.type = DataType::Int64;
  return call;
}

std::vector<int32_t> numbers(size_t count, int32_t first) {
  std::vector<int32_t> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

void destroy_all(const std::vector<Communicator*>& communicators) {
  for (Communicator* communicator : communicators) EXPECT_OK(Communicator::destroy(communicator));
}

// One thread may hold all ranks: a group runs their requests together, several for each, in order.
TEST(Group, OneThreadDrivesAllRanks) {
  for (const int ranks : {1, 2, 4, 8}) {
    Result<std::vector<Communicator*>> made = Communicator::init_all(ranks);
    ASSERT_TRUE(made.ok()) << made.status().message();
    for (const size_t count : {1, 30000}) {
      std::vector<std::vector<int64_t>> first, second;
      for (int rank = 0; rank < ranks; ++rank) first.emplace_back(count, rank + 1), second.emplace_back(count, 1);
      group_start();
      for (Communicator* communicator : *made) {
        EXPECT_OK(communicator->submit(all_reduce(first[communicator->rank()])));
        EXPECT_OK(communicator->submit(all_reduce(second[communicator->rank()])));
      }
      EXPECT_OK(group_end());
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(first[rank], std::vector<int64_t>(count, sum_up_to(ranks)));
        EXPECT_EQ(second[rank], std::vector<int64_t>(count, ranks));
      }
    }
    destroy_all(*made);
  }
}

// One thread may join a communicator as all of its ranks, inside a group.
TEST(Group, OneThreadJoinsAsAllRanks) {
  const UniqueId id = testing::fresh_id();
  std::vector<Communicator*> communicators;
  group_start();
  for (int rank = 0; rank < 3; ++rank) {
    Result<Communicator*> made = Communicator::init(id, 3, rank, {});
    ASSERT_TRUE(made.ok());
    communicators.push_back(*made);
  }
  EXPECT_OK(group_end());
  std::vector<std::vector<int64_t>> data(3, {1});
  group_start();
  for (int rank = 0; rank < 3; ++rank) EXPECT_OK(communicators[rank]->submit(all_reduce(data[rank])));
  EXPECT_OK(group_end());
  EXPECT_EQ(data[2][0], 3);
  destroy_all(communicators);
}

// A group may span communicators, named by each rank in an order of its own.
TEST(Group, SpansCommunicators) {
  Ranks first(3), second(3);
  on_threads(3, [&](int rank) {
    for (int round = 0; round < 20; ++round) {
      std::vector<int64_t> a(round * 500 + 1, rank), b(round * 300 + 1, 1);
      group_start();
      if (rank == 1) EXPECT_OK(second[rank].submit(all_reduce(b)));
      EXPECT_OK(first[rank].submit(all_reduce(a)));
      if (rank != 1) EXPECT_OK(second[rank].submit(all_reduce(b)));
      EXPECT_OK(group_end());
      ASSERT_EQ(a, std::vector<int64_t>(a.size(), 3));
      ASSERT_EQ(b, std::vector<int64_t>(b.size(), 3));
    }
  });
}

// Two communicators of the same ranks work side by side, each from threads of its own.
TEST(Group, CommunicatorsAreIndependent) {
  Ranks first(2), second(2);
  on_threads(4, [&](int thread) {
    Ranks& ranks = thread < 2 ? first : second;
    for (int round = 0; round < 100; ++round) ASSERT_EQ(sum_of_ranks(ranks[thread % 2]), 3);
  });
}

// Groups nest: only the outermost end runs anything. An end too many is refused.
TEST(Group, Nests) {
  Ranks ranks(2);
  ranks.run([](Communicator& communicator) {
    std::vector<int64_t> data{1};
    group_start();
    group_start();
    EXPECT_OK(communicator.submit(all_reduce(data)));
    EXPECT_EQ(group_depth(), 2);
    EXPECT_OK(group_end());
    EXPECT_EQ(data[0], 1);
    EXPECT_OK(group_end());
    EXPECT_EQ(data[0], 2);
    EXPECT_EQ(group_end().code(), Code::InvalidUsage);
  });
}

// A bad call inside a group is reported at once and by the end of the group; the next group is unharmed.
TEST(Group, ReportsBadCallsAtItsEnd) {
  Ranks ranks(2);
  ranks.run([](Communicator& communicator) {
    std::vector<int64_t> data{1};
    CollectiveCall bad = all_reduce(data);
    bad.send = nullptr;
    group_start();
    EXPECT_EQ(communicator.submit(bad).code(), Code::InvalidArgument);
    EXPECT_EQ(group_end().code(), Code::InvalidArgument);
    EXPECT_EQ(sum_of_ranks(communicator), 3);
  });
}

// Messages between two ranks arrive in order, of any size, none included.
TEST(PointToPoint, KeepsItsOrder) {
  Ranks ranks(2);
  const size_t sizes[] = {0, 1, 12, 13, 5000, 100'000, 1'000'000, 3};
  ranks.run([&](Communicator& communicator) {
    int32_t first = 0;
    for (const size_t size : sizes) {
      const std::vector<int32_t> right = numbers(size, first++);
      std::vector<int32_t> got(size, -1);
      if (communicator.rank() == 0) {
        EXPECT_OK(communicator.send(right.data(), size, DataType::Int32, 1));
      } else {
        EXPECT_OK(communicator.recv(got.data(), size, DataType::Int32, 0));
        EXPECT_EQ(got, right);
      }
    }
  });
}

// In a group everybody may send to everybody, itself included, several times, before anybody receives.
TEST(PointToPoint, AllExchangeInOneGroup) {
  constexpr size_t kCount = 60'000;
  Ranks ranks(4);
  ranks.run([&](Communicator& communicator) {
    const int me = communicator.rank();
    std::vector<std::vector<int32_t>> out, in;
    for (int message = 0; message < 8; ++message) {
      out.push_back(numbers(kCount / (message / 4 + 1), me * 1000 + message / 4));
      in.emplace_back(out.back().size(), -1);
    }
    group_start();
    for (int message = 0; message < 8; ++message) {
      EXPECT_OK(communicator.send(out[message].data(), out[message].size(), DataType::Int32, message % 4));
    }
    for (int message = 0; message < 8; ++message) {
      EXPECT_OK(communicator.recv(in[message].data(), in[message].size(), DataType::Int32, message % 4));
    }
    EXPECT_OK(group_end());
    for (int message = 0; message < 8; ++message) {
      ASSERT_EQ(in[message], numbers(in[message].size(), message % 4 * 1000 + message / 4)) << message;
    }
  });
}

// Collectives and point-to-point calls of one group do not get into each other's way.
TEST(PointToPoint, MixesWithCollectives) {
  Ranks ranks(3);
  ranks.run([&](Communicator& communicator) {
    const int me = communicator.rank();
    for (int round = 0; round < 20; ++round) {
      std::vector<int64_t> data(round * 1000 + 1, me);
      const int64_t out = me * 100 + round;
      int64_t in = -1;
      group_start();
      EXPECT_OK(communicator.recv(&in, 1, DataType::Int64, (me + 2) % 3));
      EXPECT_OK(communicator.submit(all_reduce(data)));
      EXPECT_OK(communicator.send(&out, 1, DataType::Int64, (me + 1) % 3));
      EXPECT_OK(group_end());
      EXPECT_EQ(in, (me + 2) % 3 * 100 + round);
      ASSERT_EQ(data, std::vector<int64_t>(data.size(), 3));
    }
  });
}

// A send to oneself needs its receive in the same group.
TEST(PointToPoint, ToOneselfNeedsBothHalves) {
  Ranks ranks(2);
  int32_t value = 1;
  EXPECT_EQ(ranks[0].send(&value, 1, DataType::Int32, 0).code(), Code::InvalidUsage);
}

// A receive of another size than what was sent is found out by the receiver, who names both.
TEST(PointToPoint, NamesMismatches) {
  Ranks ranks(2);
  ranks.run([](Communicator& communicator) {
    std::vector<float> data(10);
    if (communicator.rank() == 0) {
      (void)communicator.send(data.data(), 5, DataType::Float32, 1).ok();
      return;
    }
    const Status status = communicator.recv(data.data(), 6, DataType::Float32, 0);
    EXPECT_EQ(status.code(), Code::InvalidUsage);
    EXPECT_NE(status.message().find("of 5 float32"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("of 6 float32"), std::string::npos) << status.message();
  });
}

}  // namespace
}  // namespace theseus
