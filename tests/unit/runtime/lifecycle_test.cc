// How communicators begin, divide, fail and end.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/env.h"
#include "rank_threads.h"

namespace theseus {
namespace {

using testing::fresh_id;
using testing::on_threads;
using testing::Ranks;
using testing::sum_of_ranks;
using testing::sum_up_to;

// Sets a setting until the end of its scope.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) {
    setenv(name, value, 1);
    reload_settings();
  }
  ~Setting() {
    unsetenv(name_);
    reload_settings();
  }

 private:
  const char* name_;
};

// What each of several ranks got when it tried to join, each on its own thread.
std::vector<Status> join(const UniqueId& id, const std::vector<std::pair<int, int>>& ranks_and_rank) {
  std::vector<Status> results(ranks_and_rank.size());
  on_threads(static_cast<int>(results.size()), [&](int thread) {
    const auto [ranks, rank] = ranks_and_rank[static_cast<size_t>(thread)];
    Result<Communicator*> made = Communicator::init(id, ranks, rank, {});
    results[static_cast<size_t>(thread)] = made.ok() ? Communicator::destroy(*made) : made.status();
  });
  return results;
}

TEST(Init, RefusesImpossibleRanks) {
  const UniqueId id = fresh_id();
  EXPECT_EQ(Communicator::init(id, 0, 0, {}).status().code(), Code::InvalidArgument);
  EXPECT_EQ(Communicator::init(id, 2, 2, {}).status().code(), Code::InvalidArgument);
  EXPECT_EQ(Communicator::init(id, 2, -1, {}).status().code(), Code::InvalidArgument);
  EXPECT_EQ(Communicator::init_all(0).status().code(), Code::InvalidArgument);
  EXPECT_FALSE(Communicator::init(UniqueId{}, 2, 0, {}).ok());
}

// Two that claim one rank, or count the ranks differently, are told; nobody waits for ever.
TEST(Init, TellsConflictingRanks) {
  for (const auto& ranks : {std::vector<std::pair<int, int>>{{2, 0}, {2, 0}}, {{2, 0}, {3, 1}}}) {
    Setting timeout("THESEUS_INIT_TIMEOUT", "20");
    int told = 0;
    for (const Status& status : join(fresh_id(), ranks)) {
      EXPECT_FALSE(status.ok());
      told += status.code() == Code::InvalidUsage;
    }
    EXPECT_GE(told, 1);
  }
}

// An id names one communicator, once.
TEST(Init, RefusesAnIdThatWasUsed) {
  const UniqueId id = fresh_id();
  for (const Status& status : join(id, {{2, 0}, {2, 1}})) EXPECT_TRUE(status.ok()) << status.message();
  for (const Status& status : join(id, {{2, 0}, {2, 1}}))
    EXPECT_EQ(status.code(), Code::InvalidUsage) << status.message();
}

// Ranks that never come are named when the time is up.
TEST(Init, NamesTheRanksThatAreMissing) {
  Setting timeout("THESEUS_INIT_TIMEOUT", "0.3");
  for (const Status& status : join(fresh_id(), {{4, 0}, {4, 2}})) {
    EXPECT_EQ(status.code(), Code::Timeout) << status.message();
    EXPECT_NE(status.message().find('1'), std::string::npos) << status.message();
    EXPECT_NE(status.message().find('3'), std::string::npos) << status.message();
  }
}

// A handle lives from init to destroy; ending it twice is refused, and null is nothing.
TEST(Handles, EndOnce) {
  Result<Communicator*> made = Communicator::init(UniqueId{}, 1, 0, {});
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_TRUE(Communicator::is_live(*made));
  EXPECT_EQ(sum_of_ranks(**made), 1);
  EXPECT_OK(Communicator::destroy(*made));
  EXPECT_FALSE(Communicator::is_live(*made));
  EXPECT_EQ(Communicator::destroy(*made).code(), Code::InvalidArgument);
  EXPECT_EQ(Communicator::abort(*made).code(), Code::InvalidArgument);
  EXPECT_OK(Communicator::destroy(nullptr));
}

// After finalize nothing runs any more; what ran before is unharmed.
TEST(Handles, FinalizeEndsWork) {
  Ranks ranks(3);
  ranks.run([](Communicator& communicator) {
    EXPECT_EQ(sum_of_ranks(communicator), 6);
    EXPECT_OK(communicator.finalize());
    EXPECT_EQ(communicator.barrier().code(), Code::InvalidUsage);
    EXPECT_EQ(communicator.finalize().code(), Code::InvalidUsage);
  });
}

// Communicators come and go without a trace.
TEST(Handles, ComeAndGo) {
  for (int round = 0; round < 15; ++round) {
    Ranks ranks(2);
    ranks.run([](Communicator& communicator) { EXPECT_EQ(sum_of_ranks(communicator), 3); });
  }
}

// A split makes one communicator a color, ordered by key; who has no color gets none. All of them work, and the parent.
TEST(Split, MakesACommunicatorOfEachColor) {
  Ranks ranks(5);
  ranks.run([](Communicator& communicator) {
    const int rank = communicator.rank();
    Result<Communicator*> made = communicator.split(rank == 4 ? -1 : rank % 2, -rank, nullptr);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(sum_of_ranks(communicator), 15);
    if (rank == 4) {
      EXPECT_EQ(*made, nullptr);
      return;
    }
    Communicator& child = **made;
    EXPECT_EQ(child.ranks(), 2);
    EXPECT_EQ(child.rank(), rank < 2 ? 1 : 0) << "the higher rank has the lower key";
    EXPECT_EQ(sum_of_ranks(child), 3);
    Result<Communicator*> grandchild = child.split(0, child.rank(), nullptr);
    ASSERT_TRUE(grandchild.ok()) << grandchild.status().message();
    EXPECT_EQ(sum_of_ranks(**grandchild), 3);
    EXPECT_OK(Communicator::destroy(*grandchild));
    EXPECT_OK(Communicator::destroy(&child));
  });
}

// A shrink leaves out whom it names, and keeps the order of the others.
TEST(Shrink, LeavesOutTheExcluded) {
  Ranks ranks(4);
  ranks.run([](Communicator& communicator) {
    if (communicator.rank() == 1) return;
    EXPECT_EQ(communicator.shrink({communicator.rank()}, nullptr, false).status().code(), Code::InvalidArgument);
    EXPECT_EQ(communicator.shrink({9}, nullptr, false).status().code(), Code::InvalidArgument);
    Result<Communicator*> made = communicator.shrink({1}, nullptr, false);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ((*made)->ranks(), 3);
    EXPECT_EQ((*made)->rank(), communicator.rank() == 0 ? 0 : communicator.rank() - 1);
    EXPECT_EQ(sum_of_ranks(**made), 6);
    EXPECT_OK(Communicator::destroy(*made));
  });
}

// When a rank aborts, the others' calls end with an error, and they can go on without it.
TEST(Shrink, GoesOnAfterAnAbort) {
  Ranks ranks(4);
  on_threads(4, [&](int rank) {
    EXPECT_EQ(sum_of_ranks(ranks[rank]), sum_up_to(4));
    if (rank == 2) {
      EXPECT_OK(Communicator::abort(ranks.take(rank)));
      return;
    }
    Communicator& communicator = ranks[rank];
    Status status;
    while (status.ok()) status = communicator.barrier();
    EXPECT_FALSE(status.message().empty());
    EXPECT_FALSE(communicator.async_error().ok());
    EXPECT_FALSE(communicator.shrink({2}, nullptr, false).ok()) << "it has failed, and abort was not asked for";
    Result<Communicator*> made = communicator.shrink({2}, nullptr, true);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(sum_of_ranks(**made), sum_up_to(3));
    EXPECT_OK(Communicator::destroy(*made));
  });
}

// An abort ends a call of another thread that waits for a peer, and the peer learns of it.
TEST(Abort, EndsACallThatWaits) {
  Ranks ranks(2);
  int64_t ready = 1, never = 0;
  std::thread waiter([&] {
    group_start();
    EXPECT_OK(ranks[0].send(&ready, 1, DataType::Int64, 1));
    EXPECT_OK(ranks[0].recv(&never, 1, DataType::Int64, 1));
    EXPECT_EQ(group_end().code(), Code::InvalidUsage);
  });
  int64_t seen = 0;
  EXPECT_OK(ranks[1].recv(&seen, 1, DataType::Int64, 0));  // so the waiter is inside its call
  EXPECT_OK(Communicator::abort(ranks.take(0)));
  waiter.join();
  EXPECT_FALSE(ranks[1].barrier().ok());
}

// An abort ends a join that waits for ranks that never come.
TEST(Abort, EndsAJoinThatWaits) {
  CommConfig config;
  config.blocking = false;
  Result<Communicator*> made = Communicator::init(fresh_id(), 2, 0, config);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_TRUE((*made)->in_progress());
  EXPECT_OK(Communicator::abort(*made));
}

// Revoking tells everybody: calls under way and later ones end with InvalidUsage; a second time is refused.
TEST(Revoke, EndsCallsOfAllRanks) {
  Ranks ranks(3);
  ranks.run([](Communicator& communicator) {
    if (communicator.rank() == 1) {
      EXPECT_OK(communicator.revoke());
      EXPECT_EQ(communicator.revoke().code(), Code::InvalidArgument);
    } else {
      EXPECT_EQ(communicator.barrier().code(), Code::InvalidUsage);
    }
    EXPECT_EQ(communicator.barrier().code(), Code::InvalidUsage);
  });
}

// A call gives up after the timeout that was set, and says so.
TEST(TimeLimit, EndsACallWithoutPartner) {
  Ranks ranks(2);
  ranks[0].set_timeout(0.05);
  const Status status = ranks[0].barrier();
  EXPECT_EQ(status.code(), Code::Timeout) << status.message();
  Status other;
  while (other.ok()) other = ranks[1].barrier();  // the first may still find what the other rank had sent
  EXPECT_FALSE(ranks[1].async_error().ok());
}

}  // namespace
}  // namespace theseus
