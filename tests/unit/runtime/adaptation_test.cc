// The job's context over real communicators: what is written to the log takes effect on all ranks before one and the
// same request, and results stay right all the while.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>
#include <thread>

#include "base/shared_log.h"
#include "rank_threads.h"
#include "runtime/impl.h"
#include "schedule/plan.h"

namespace theseus {
namespace {

using testing::Ranks;
using testing::sum_up_to;

// The library reads its settings once, so one log serves all tests of this process.
class JobLogFile {
 public:
  static JobLogFile& instance() {
    static JobLogFile& file = *new JobLogFile;
    return file;
  }
  void append(const Record& record) {
    Status status = writer_->append(writer_->count(), encode(record));
    ASSERT_TRUE(status.ok()) << status.message();
  }
  uint64_t count() const { return writer_->count(); }

 private:
  JobLogFile() {
    char folder[] = "/tmp/theseus-test-XXXXXX";
    if (mkdtemp(folder) == nullptr) abort();
    const std::string path = std::string(folder) + "/log";
    setenv("THESEUS_JOB_LOG", path.c_str(), 1);
    setenv("THESEUS_ADAPT", "on", 1);
    Result<std::unique_ptr<SharedLogWriter>> opened = SharedLogWriter::open(path, 4711);
    if (!opened.ok()) abort();
    writer_ = std::move(*opened);
    std::atexit([] { std::filesystem::remove_all(std::filesystem::path(getenv("THESEUS_JOB_LOG")).parent_path()); });
  }
  std::unique_ptr<SharedLogWriter> writer_;
};

const bool ready_before_settings_are_read = (JobLogFile::instance(), true);

ScheduleDefinition schedule(const std::string& name, const std::string& algorithm, const std::string& usable) {
  ScheduleDefinition definition;
  definition.name = name;
  definition.algorithm = algorithm;
  definition.usable = usable;
  return definition;
}

// One AllReduce; returns the name of the schedule that it was to run, "" for a built-in choice.
std::string all_reduce(Communicator& communicator, size_t count) {
  std::vector<int64_t> data(count, communicator.rank() + 1);
  CollectiveCall call;
  call.send = call.recv = data.data();
  call.count = count;
  call.type = DataType::Int64;
  EXPECT_OK(communicator.submit(call));
  EXPECT_EQ(data, std::vector<int64_t>(count, sum_up_to(communicator.ranks())));
  return communicator.explain(Collective::AllReduce, count, DataType::Int64, 0).chosen;
}

// Runs requests on all ranks until the log's end is installed; returns per rank what each request was to run.
std::vector<std::vector<std::string>> run_until_installed(Ranks& ranks, size_t count) {
  std::vector<std::vector<std::string>> chosen(static_cast<size_t>(ranks.size()));
  const uint64_t end = JobLogFile::instance().count();
  ranks.run([&](Communicator& communicator) {
    // Installed positions are equal on all ranks between two requests, so all leave this loop together.
    while (communicator.context_state()->installed < end) {
      chosen[static_cast<size_t>(communicator.rank())].push_back(all_reduce(communicator, count));
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    for (int i = 0; i < 3; ++i) {
      chosen[static_cast<size_t>(communicator.rank())].push_back(all_reduce(communicator, count));
    }
  });
  return chosen;
}

TEST(Adaptation, AScheduleTakesOverBeforeTheSameRequestOnAllRanks) {
  JobLogFile& log = JobLogFile::instance();
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
  JobLogFile& log = JobLogFile::instance();
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
  JobLogFile& log = JobLogFile::instance();
  Ranks ranks(3);
  log.append(schedule("brief", "direct", "ranks == 3 and count == 77"));
  EXPECT_EQ(run_until_installed(ranks, 77)[0].back(), "brief");
  log.append(ScheduleRemoval{"brief"});
  EXPECT_NE(run_until_installed(ranks, 77)[0].back(), "brief");
}

TEST(Adaptation, AScheduleOfNoUseIsNeverOffered) {
  JobLogFile& log = JobLogFile::instance();
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
