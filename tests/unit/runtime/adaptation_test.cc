// The job's context over real communicators: what is written to the log takes effect on all ranks before one and the
// same request, and results stay right all the while.
#include <gtest/gtest.h>

#include "job_log_file.h"

namespace theseus {
namespace {

using testing::all_reduce;
using testing::job_log;
using testing::JobLogWriter;
using testing::Ranks;
using testing::run_until_installed;
using testing::schedule;

TEST(Adaptation, AScheduleTakesOverBeforeTheSameRequestOnAllRanks) {
  JobLogWriter& log = job_log();
  for (const int size : {2, 3, 5}) {
    Ranks ranks(size);
    const std::string name = "ring" + std::to_string(size);
    const std::string usable = "ranks == " + std::to_string(size) + " and bytes >= 800";
    log.append(schedule(name, "ring", usable));
    const auto chosen = run_until_installed(ranks, 100);
    for (int rank = 1; rank < size; ++rank) EXPECT_EQ(chosen[static_cast<size_t>(rank)], chosen[0]) << "rank " << rank;
    EXPECT_EQ(chosen[0].back(), name);
    ranks.run([&](Communicator& communicator) { EXPECT_NE(all_reduce(communicator, 99), name); });
  }
}

TEST(Adaptation, ValuesSwitchSchedulesBackAndForth) {
  JobLogWriter& log = job_log();
  log.append(AttributeDefinition{.name = "mode"});
  log.append(schedule("slow", "direct", "mode == 1 and ranks == 4"));
  Ranks ranks(4);
  for (int round = 0; round < 6; ++round) {
    log.append(ExogenousUpdate{"mode", {{0, static_cast<double>(round % 2)}}});
    const auto chosen = run_until_installed(ranks, 50);
    for (int rank = 1; rank < 4; ++rank) EXPECT_EQ(chosen[static_cast<size_t>(rank)], chosen[0]);
    EXPECT_EQ(chosen[0].back() == "slow", round % 2 == 1) << "round " << round;
  }
}

TEST(Adaptation, ARemovedScheduleIsNotRunAgain) {
  JobLogWriter& log = job_log();
  Ranks ranks(3);
  log.append(schedule("brief", "direct", "ranks == 3 and count == 77"));
  EXPECT_EQ(run_until_installed(ranks, 77)[0].back(), "brief");
  log.append(ScheduleRemoval{"brief"});
  EXPECT_NE(run_until_installed(ranks, 77)[0].back(), "brief");
}

TEST(Adaptation, AScheduleOfNoUseIsNeverOffered) {
  JobLogWriter& log = job_log();
  Ranks ranks(2);
  log.append(schedule("unknown", "no-such-algorithm", ""));
  EXPECT_NE(run_until_installed(ranks, 10)[0].back(), "unknown");
}

// Requests of two communicators, begun in opposite orders, with agreements due on both all the time.
TEST(Adaptation, OppositeOrdersOfTwoCommunicatorsDoNotHang) {
  Ranks one(2), other(2);
  testing::on_threads(2, [&](int rank) {
    for (int i = 0; i < 500; ++i) {
      std::vector<int64_t> data[2] = {{rank + 1}, {rank + 1}};
      std::shared_ptr<Work> work[2];
      for (const int which : {rank, 1 - rank}) {
        CollectiveCall call;
        call.send = call.recv = data[which].data();
        call.count = 1;
        call.type = DataType::Int64;
        work[which] = (which == 0 ? one : other)[rank].submit_async(call);
      }
      for (const auto& one_work : work) EXPECT_OK(one_work->wait(60));
      EXPECT_EQ(data[0][0] + data[1][0], 6);
    }
  });
}

}  // namespace
}  // namespace theseus
