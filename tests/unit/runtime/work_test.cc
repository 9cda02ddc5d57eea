// Asynchronous work, non-blocking communicators, and calls from several threads.
#include <gtest/gtest.h>
#include <sched.h>

#include "rank_threads.h"

namespace theseus {
namespace {

using testing::fresh_id;
using testing::on_threads;
using testing::Ranks;
using testing::sum_of_ranks;

CollectiveCall all_reduce(std::vector<float>& data) {
  CollectiveCall call;
  call.send = call.recv = data.data();
  call.count = data.size();
  return call;
}

// Work runs in the order of submission, whatever is waited for first; a blocking call takes its turn behind it.
TEST(AsyncWork, RunsInOrder) {
  Ranks ranks(3);
  ranks.run([](Communicator& communicator) {
    std::vector<std::vector<float>> data;
    std::vector<std::shared_ptr<Work>> works;
    for (int i = 0; i < 30; ++i) data.emplace_back(i * 700 + 1, static_cast<float>(i));
    for (auto& one : data) works.push_back(communicator.submit_async(all_reduce(one)));
    EXPECT_EQ(sum_of_ranks(communicator), 6);
    for (size_t i = data.size(); i-- > 0;) {
      EXPECT_TRUE(works[i]->done()) << "the blocking call came after it";
      EXPECT_OK(works[i]->wait(-1));
      EXPECT_OK(works[i]->status());
      EXPECT_EQ(data[i], std::vector<float>(data[i].size(), 3 * static_cast<float>(i)));
    }
  });
}

// Every kind of call can be asynchronous.
TEST(AsyncWork, TakesEveryKindOfCall) {
  Ranks ranks(2);
  ranks.run([](Communicator& communicator) {
    const int me = communicator.rank();
    const int32_t out = me + 10;
    int32_t in = 0, received = 0;
    const size_t counts[] = {0, 0}, one[] = {me == 0 ? 0u : 1u, me == 0 ? 1u : 0u}, offsets[] = {0, 0};
    std::vector<std::shared_ptr<Work>> works;
    works.push_back(me == 0 ? communicator.send_async(&out, 1, DataType::Int32, 1)
                            : communicator.recv_async(&in, 1, DataType::Int32, 0));
    works.push_back(communicator.barrier_async());
    works.push_back(communicator.all_to_all_v_async({&out, one, offsets, &received, one, offsets, DataType::Int32}));
    works.push_back(communicator.all_to_all_v_async({&out, counts, offsets, &in, counts, offsets, DataType::Int32}));
    for (const auto& work : works) EXPECT_OK(work->wait(-1));
    EXPECT_EQ(in, me == 1 ? 10 : 0);
    EXPECT_EQ(received, 11 - me);
  });
}

// Waiting for a while leaves the work running; bad arguments are known at once.
TEST(AsyncWork, CanBeWaitedForAWhile) {
  Ranks ranks(2);
  std::vector<float> first(10, 1), second(10, 2);
  std::shared_ptr<Work> work = ranks[0].submit_async(all_reduce(first));
  EXPECT_EQ(work->wait(0).code(), Code::Timeout);
  EXPECT_EQ(work->wait(0.01).code(), Code::Timeout);
  EXPECT_EQ(work->status().code(), Code::InProgress);
  EXPECT_OK(ranks[1].submit(all_reduce(second)));
  EXPECT_OK(work->wait(-1));
  EXPECT_EQ(first, std::vector<float>(10, 3));

  CollectiveCall bad = all_reduce(first);
  bad.op = 99;
  work = ranks[0].submit_async(bad);
  EXPECT_TRUE(work->done());
  EXPECT_EQ(work->wait(-1).code(), Code::InvalidArgument);
}

// Handles of work outlive their communicator; destroy waits for what was submitted.
TEST(AsyncWork, IsFinishedByDestroy) {
  std::vector<std::shared_ptr<Work>> works(2);
  std::vector<std::vector<float>> data(2, std::vector<float>(50'000, 1));
  {
    Ranks ranks(2);
    ranks.run([&](Communicator& communicator) {
      works[communicator.rank()] = communicator.submit_async(all_reduce(data[communicator.rank()]));
    });
  }
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_OK(works[rank]->wait(-1));
    EXPECT_EQ(data[rank][0], 2);
  }
}

// An abort ends the work under way and drops what is queued behind it.
TEST(AsyncWork, IsEndedByAbort) {
  Ranks ranks(2);
  std::vector<float> data(10);
  std::vector<std::shared_ptr<Work>> works;
  for (int i = 0; i < 5; ++i) works.push_back(ranks[0].submit_async(all_reduce(data)));
  EXPECT_OK(Communicator::abort(ranks.take(0)));
  for (const auto& work : works) {
    EXPECT_TRUE(work->done());
    EXPECT_EQ(work->wait(-1).code(), Code::InvalidUsage);
  }
}

void wait_until_ready(Communicator& communicator) {
  while (communicator.in_progress()) sched_yield();
  EXPECT_OK(communicator.async_error());
}

// A non-blocking communicator answers InProgress to everything, and is polled.
TEST(NonBlocking, IsPolled) {
  const UniqueId id = fresh_id();
  CommConfig config;
  config.blocking = false;
  on_threads(3, [&](int rank) {
    Result<Communicator*> made = Communicator::init(id, 3, rank, config);
    ASSERT_TRUE(made.ok()) << made.status().message();
    Communicator& communicator = **made;
    wait_until_ready(communicator);
    std::vector<float> data(1000, 1), grouped(1000, 2);
    EXPECT_EQ(communicator.submit(all_reduce(data)).code(), Code::InProgress);
    group_start();
    EXPECT_OK(communicator.submit(all_reduce(grouped)));
    EXPECT_EQ(group_end().code(), Code::InProgress);
    wait_until_ready(communicator);
    EXPECT_EQ(data, std::vector<float>(1000, 3));
    EXPECT_EQ(grouped, std::vector<float>(1000, 6));
    EXPECT_OK(Communicator::destroy(&communicator));
  });
}

// Calls of one communicator come from any threads: each runs whole, one after the other.
TEST(Threads, MayShareACommunicator) {
  Ranks ranks(2);
  on_threads(6, [&](int thread) {
    Communicator& communicator = ranks[thread % 2];
    for (int i = 0; i < 30; ++i) {
      if (thread < 4) {
        EXPECT_OK(communicator.barrier());
      } else {
        EXPECT_OK(communicator.barrier_async()->wait(-1));
      }
    }
  });
}

// What may be asked at any time, may be asked by any thread while calls run.
TEST(Threads, MayAskWhileCallsRun) {
  Ranks ranks(2);
  std::atomic<bool> over{false};
  std::thread asking([&] {
    while (!over.load()) {
      EXPECT_OK(ranks[0].async_error());
      (void)ranks[0].in_progress();
      EXPECT_FALSE(ranks[0].describe_peers().empty());
      EXPECT_FALSE(ranks[0].explain(Collective::AllReduce, 1000, DataType::Float32, 0).chosen.empty());
      EXPECT_TRUE(Communicator::is_live(&ranks[0]));
      ranks[0].set_timeout(100);
    }
  });
  ranks.run([](Communicator& communicator) {
    for (int i = 0; i < 100; ++i) EXPECT_EQ(sum_of_ranks(communicator), 3);
  });
  over = true;
  asking.join();
}

}  // namespace
}  // namespace theseus
