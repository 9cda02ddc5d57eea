// The job's context on emulated GPUs: schedules that come, go and give way to each other while requests are under way.
// All ranks run the same one for each request, and results are right all the while.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <random>
#include <set>
#include <thread>

#include "compiler/compile.h"
#include "compiler/registry.h"
#include "gpu_plans.h"
#include "job_log.h"
#include "resource/family.h"
#include "runtime/impl.h"
#include "unit/runtime/rank_processes.h"

namespace theseus {
namespace {

using testing::driver;
using testing::GpuMemory;
using testing::GpuStream;
using testing::job_log;
using testing::JobLogWriter;
using testing::on_threads;
using testing::run_with_log;
using testing::schedule;

constexpr size_t kLongest = 40'000;  // elements of a buffer
constexpr size_t kPlaces = 4;        // buffers of a rank: requests at a time

// One rank, used by a thread of its own. Requests may be several at a time, each in its own buffers.
class Rank {
 public:
  Rank(const UniqueId& id, int ranks, int rank) : device_(rank % driver().device_count()), stream_(device_) {
    EXPECT_OK(driver().set_current_device(device_));
    Result<Communicator*> made = Communicator::init(id, ranks, rank, {});
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (made.ok()) communicator_ = *made;
    const std::vector<int64_t> nothing(kLongest);
    for (auto& memory : memory_) memory = std::make_unique<GpuMemory>(device_, nothing.data(), kLongest * 8);
  }
  // To be called by the rank's thread, as the others call theirs.
  void leave() { EXPECT_OK(Communicator::destroy(communicator_)); }

  Communicator& communicator() { return *communicator_; }
  ResourceTree& tree() { return CommunicatorAccess::impl(*communicator_).plans->resources(); }
  uint64_t requests() const { return requests_; }

  // Queues an AllReduce or a Broadcast in the buffer `place`. Returns the schedule that it runs.
  std::string submit(Collective collective, size_t count, size_t place = 0) {
    const int root = communicator_->ranks() - 1;
    std::vector<int64_t> data(count);
    number_[place] = requests_++;
    for (size_t i = 0; i < count; ++i) data[i] = value(communicator_->rank(), place, i);
    EXPECT_OK(driver().copy(device_, memory_[place]->at(), data.data(), count * 8, stream_.get()));
    CollectiveCall call;
    call.collective = collective;
    call.send = call.recv = memory_[place]->at();
    call.count = count;
    call.type = DataType::Int64;
    call.root = root;
    call.stream = stream_.get();
    EXPECT_OK(communicator_->submit(call));
    return communicator_->explain(collective, count, DataType::Int64, collective == Collective::Broadcast ? root : 0)
        .chosen;
  }
  // Waits, and compares.
  void check(Collective collective, size_t count, size_t place = 0) {
    const int ranks = communicator_->ranks();
    std::vector<int64_t> data(count);
    EXPECT_OK(driver().copy(device_, data.data(), memory_[place]->at(), count * 8, stream_.get()));
    EXPECT_OK(stream_.wait());
    for (size_t i = 0; i < count; ++i) {
      int64_t right = value(ranks - 1, place, i);
      for (int rank = 0; rank < ranks - 1 && collective == Collective::AllReduce; ++rank) {
        right += value(rank, place, i);
      }
      ASSERT_EQ(data[i], right) << "rank " << communicator_->rank() << ", element " << i << " of " << count;
    }
  }
  std::string all_reduce(size_t count) {
    std::string chosen = submit(Collective::AllReduce, count);
    check(Collective::AllReduce, count);
    return chosen;
  }

 private:
  // What `rank` puts in: no two requests have the same.
  int64_t value(int rank, size_t place, size_t element) const {
    return static_cast<int64_t>(number_[place]) * 1'000'003 + static_cast<int64_t>(element) * (rank + 1) + rank;
  }

  int device_;
  GpuStream stream_;
  Communicator* communicator_ = nullptr;
  std::array<std::unique_ptr<GpuMemory>, kPlaces> memory_;
  std::array<uint64_t, kPlaces> number_ = {};  // of the request in each buffer
  uint64_t requests_ = 0;
};

// body(rank) on every rank's thread; its results by rank.
template <class Result>
std::vector<Result> on_ranks(int size, const std::function<Result(Rank&)>& body) {
  const UniqueId id = testing::fresh_id();
  std::vector<Result> results(static_cast<size_t>(size));
  on_threads(size, [&](int index) {
    Rank rank(id, size, index);
    results[static_cast<size_t>(index)] = body(rank);
    rank.leave();
  });
  return results;
}

using Names = std::vector<std::string>;  // of the schedules that requests ran, one after the other

// Requests until the end of the log is installed, and a few more. What is installed is equal on all ranks between two
// requests, so all leave together. A schedule may be ready a little later than its record is read.
Names run_until_installed(Rank& rank, size_t count) {
  Names chosen;
  const uint64_t end = job_log().count();
  for (uint64_t enough = UINT64_MAX;;) {
    const ContextState state = *rank.communicator().context_state();
    if (state.installed >= end && enough == UINT64_MAX) enough = state.agreements + 4;
    if (state.agreements >= enough) break;
    chosen.push_back(rank.all_reduce(count));
  }
  for (int i = 0; i < 3; ++i) chosen.push_back(rank.all_reduce(count));
  return chosen;
}

// Requests until they run `name`, or, with an empty name, none of the log's schedules.
bool run_until(Rank& rank, size_t count, const std::string& name) {
  for (int i = 0; i < 20'000; ++i) {
    const std::string chosen = rank.all_reduce(count);
    if (name.empty() ? !chosen.starts_with("log.") : chosen == name) {
      (void)rank.all_reduce(count);
      return true;
    }
  }
  return false;
}

void expect_equal(const std::vector<Names>& chosen) {
  for (size_t rank = 1; rank < chosen.size(); ++rank) EXPECT_EQ(chosen[rank], chosen[0]) << "rank " << rank;
}

// Tags of the job log's schedules that anything is held for.
std::vector<uint64_t> scheduled_tags(Rank& rank) {
  std::vector<uint64_t> tags = rank.tree().schedules();
  std::erase_if(tags, is_predefined);
  return tags;
}

TEST(DISABLED_GpuHotSwap, TakesOver) {
  for (const int size : {2, 3, 8}) {
    const std::string name = "log.ring" + std::to_string(size);
    const std::string usable = "ranks == " + std::to_string(size) + " and bytes >= 800";
    job_log().append(schedule(name, Collective::AllReduce, "ring", usable));
    const auto chosen = on_ranks<Names>(size, [&](Rank& rank) {
      Names names = run_until_installed(rank, 100);
      EXPECT_NE(rank.all_reduce(99), name);
      return names;
    });
    expect_equal(chosen);
    EXPECT_EQ(chosen[0].back(), name);
  }
}

TEST(DISABLED_GpuHotSwap, FollowsValues) {
  JobLogWriter& log = job_log();
  log.append(AttributeDefinition{.name = "mode"});
  log.append(schedule("log.slow", Collective::AllReduce, "direct", "mode == 1"));
  std::array<std::atomic<int>, 6> told = {};
  const auto chosen = on_ranks<Names>(4, [&](Rank& rank) {
    Names all;
    for (size_t round = 0; round < told.size(); ++round) {
      if (rank.communicator().rank() == 0) {
        log.append(ExogenousUpdate{"mode", {{0, static_cast<double>(round % 2)}}});
        told[round] = 1;
        told[round].notify_all();
      }
      told[round].wait(0);  // all begin with the same end of the log
      const Names names = run_until_installed(rank, 50 + round);
      EXPECT_EQ(names.back() == "log.slow", round % 2 == 1) << "round " << round;
      all.insert(all.end(), names.begin(), names.end());
    }
    return all;
  });
  expect_equal(chosen);
}

// A plan that was compiled elsewhere, with sub-pipelines; when it is removed, nothing that was made for it is left.
TEST(DISABLED_GpuHotSwap, RunsPlansAndForgetsThem) {
  const Topology topology = single_host(3);
  Result<Algorithm> built = build("ring", Collective::AllReduce, topology);
  ASSERT_TRUE(built.ok());
  CompileOptions options;
  options.loop = LoopOrder::SubPipelines;
  const Result<Plan> plan = compile(*built, topology, options);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  JobLogWriter& log = job_log();
  log.append(schedule("log.compiled", Collective::AllReduce, "", "count > 5000"), serialize(*plan));
  std::atomic<int> removed{0};
  const auto chosen = on_ranks<Names>(3, [&](Rank& rank) {
    Names names = run_until_installed(rank, 5003);
    EXPECT_EQ(names.back(), "log.compiled");
    EXPECT_EQ(scheduled_tags(rank).size(), 1u);
    if (rank.communicator().rank() == 0) {
      log.append(ScheduleRemoval{"log.compiled"});
      removed = 1;
      removed.notify_all();
    }
    removed.wait(0);
    const Names after = run_until_installed(rank, 5003);
    EXPECT_NE(after.back(), "log.compiled");
    EXPECT_TRUE(scheduled_tags(rank).empty());
    names.insert(names.end(), after.begin(), after.end());
    return names;
  });
  expect_equal(chosen);
}

// One that replaces another takes its place in the tree: links stay as they are, and no other path is touched.
TEST(DISABLED_GpuHotSwap, ReplacementsMakeOnlyWhatDiffers) {
  JobLogWriter& log = job_log();
  log.append(schedule("log.old", Collective::AllReduce, "ring", "count == 55"));
  std::atomic<int> replaced{0};
  on_ranks<int>(3, [&](Rank& rank) {
    EXPECT_TRUE(run_until(rank, 55, "log.old"));
    (void)rank.all_reduce(56);  // a built-in one, beside it
    const TreeStatistics before = rank.tree().statistics();
    if (rank.communicator().rank() == 0) {
      ScheduleDefinition replacement = schedule("log.new", Collective::AllReduce, "ring", "count == 55");
      replacement.replaces = "log.old";
      log.append(replacement);
      replaced = 1;
      replaced.notify_all();
    }
    replaced.wait(0);
    EXPECT_TRUE(run_until(rank, 55, "log.new"));
    const TreeStatistics after = rank.tree().statistics();
    for (size_t layer = 0; layer < kLayers; ++layer) {
      EXPECT_EQ(after.layers[layer].vertices, before.layers[layer].vertices) << layer;
      const auto fresh = [&](Visit visit) {
        const auto which = static_cast<size_t>(visit);
        return after.layers[layer].visits[which] - before.layers[layer].visits[which];
      };
      EXPECT_EQ(fresh(Visit::Built), 0u) << layer;
      EXPECT_EQ(fresh(Visit::Migrated) + fresh(Visit::Copied), layer == 0 ? 0u : 1u) << layer;
    }
    EXPECT_EQ(after.built.opened, before.built.opened);
    EXPECT_EQ(after.migrated.opened, before.migrated.opened) << "a ring has the links that the ring before it had";
    EXPECT_GT(after.migrated.kept, before.migrated.kept);
    EXPECT_EQ(scheduled_tags(rank).size(), 1u);
    return 0;
  });
}

// Ranks that are processes agree through the memory that they share.
TEST(DISABLED_GpuHotSwap, SwitchesBetweenProcesses) {
  std::atomic<bool> over{false};
  std::thread weather;
  if (std::getenv("RANK_OF_TEST") == nullptr) {  // who starts the ranks writes the log
    JobLogWriter& log = job_log();
    log.append(AttributeDefinition{.name = "mode"});
    log.append(schedule("log.slow", Collective::AllReduce, "direct", "mode == 1"));
    weather = std::thread([&] {
      for (int round = 1; !over.load(); ++round) {
        log.append(ExogenousUpdate{"mode", {{0, static_cast<double>(round % 2)}}});
        std::this_thread::sleep_for(std::chrono::milliseconds(40));
      }
    });
  }
  testing::in_processes(3, [](const UniqueId& id, int index) {
    Rank rank(id, 3, index);
    std::string chosen;
    int switches = 0;
    for (int i = 0; i < 20'000 && switches < 4; ++i) {
      const char ran = rank.all_reduce(100 + static_cast<size_t>(i) % 3) == "log.slow" ? '1' : '0';
      switches += !chosen.empty() && chosen.back() != ran ? 1 : 0;
      chosen.push_back(ran);
    }
    EXPECT_EQ(switches, 4);
    const Result<std::vector<std::string>> all = rank.communicator().exchange(chosen);
    ASSERT_TRUE(all.ok()) << all.status().message();
    for (const std::string& other : *all) EXPECT_EQ(other, chosen);
    rank.leave();
  });
  over = true;
  if (weather.joinable()) weather.join();
}

// ---- Everything at once ----

constexpr std::array<const char*, 6> kForAllReduce = {"ring", "direct",   "halving_doubling",
                                                      "tree", "one_shot", "unknown"};
constexpr std::array<const char*, 3> kForBroadcast = {"ring", "direct", "tree"};

// Random records, one each few milliseconds, until `over`.
void rain(const std::atomic<bool>& over, uint64_t seed) {
  JobLogWriter& log = job_log();
  std::mt19937_64 random(seed);
  const auto any = [&](const auto& choices) { return choices[random() % choices.size()]; };
  const std::array usable = {"", "mode == 1", "bytes >= 4000", "mode + bytes / 1000 > 3", "1 / mode > 0"};
  const std::array score = {"", "mode", "-bytes", "count % 7"};
  std::vector<std::pair<std::string, Collective>> alive;
  for (int number = 0; !over.load(); ++number) {
    const uint64_t kind = random() % 4;
    if (kind <= 1) {
      const Collective collective = random() % 3 == 0 ? Collective::Broadcast : Collective::AllReduce;
      ScheduleDefinition made = schedule("log.s" + std::to_string(number), collective, "", any(usable));
      made.algorithm = collective == Collective::Broadcast ? any(kForBroadcast) : any(kForAllReduce);
      made.score = any(score);
      if (!alive.empty() && alive.back().second == collective && random() % 2 == 0) made.replaces = alive.back().first;
      log.append(made);
      alive.emplace_back(made.name, collective);
    } else if (kind == 2 || alive.empty()) {
      log.append(ExogenousUpdate{"mode", {{0, static_cast<double>(random() % 5)}}});
    } else {
      const auto gone = alive.begin() + static_cast<std::ptrdiff_t>(random() % alive.size());
      log.append(ScheduleRemoval{gone->first});
      alive.erase(gone);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 12));
  }
}

// Several requests at a time, of many counts and two collectives; two ranks have no room to keep anything.
Names run_many(Rank& rank, int requests, uint64_t seed) {
  if (rank.communicator().rank() % 3 == 0) rank.tree().set_budget(0);
  std::mt19937_64 random(seed);  // the same on all ranks
  struct Pending {
    Collective collective;
    size_t count = 0;
  };
  std::array<Pending, kPlaces> pending = {};
  Names chosen;
  for (int i = 0; i < requests + static_cast<int>(kPlaces); ++i) {
    const size_t place = static_cast<size_t>(i) % kPlaces;
    if (pending[place].count > 0) rank.check(pending[place].collective, pending[place].count, place);
    pending[place].count = 0;
    if (i >= requests) continue;
    const std::array<size_t, 5> counts = {1, 7, 513, 1000 + random() % 50, kLongest - random() % 3};
    const uint64_t which = random() % 24;
    pending[place] = {random() % 4 == 0 ? Collective::Broadcast : Collective::AllReduce,
                      counts[which == 0 ? 4 : which % 4]};
    chosen.push_back(rank.submit(pending[place].collective, pending[place].count, place));
  }
  return chosen;
}

TEST(DISABLED_GpuHotSwap, StandsTheRain) {
  job_log().append(AttributeDefinition{.name = "mode"});
  std::atomic<bool> over{false};
  std::thread weather([&] { rain(over, 99); });
  std::vector<ContextState> states(6);
  const auto chosen = on_ranks<Names>(6, [&](Rank& rank) {
    Names names = run_many(rank, 2500, 7);
    states[static_cast<size_t>(rank.communicator().rank())] = *rank.communicator().context_state();
    return names;
  });
  over = true;
  weather.join();
  expect_equal(chosen);
  std::set<std::string> schedules;
  for (const std::string& name : chosen[0]) {
    if (name.starts_with("log.")) schedules.insert(name);
  }
  // Vacuous unless the rain was felt.
  EXPECT_GE(schedules.size(), 3u);
  EXPECT_GE(states[0].epoch, 3u);
  for (const ContextState& state : states) EXPECT_EQ(state.epoch, states[0].epoch);
}

class GpuHotSwap : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuHotSwap, InAProcessOfItsOwn) { run_with_log(std::string("DISABLED_GpuHotSwap.") + GetParam()); }

INSTANTIATE_TEST_SUITE_P(Cases, GpuHotSwap,
                         ::testing::Values("TakesOver", "FollowsValues", "RunsPlansAndForgetsThem",
                                           "ReplacementsMakeOnlyWhatDiffers", "SwitchesBetweenProcesses",
                                           "StandsTheRain"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace theseus
