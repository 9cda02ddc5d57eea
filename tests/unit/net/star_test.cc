// The control star: exchanges, and that every survivor learns of a failure, whose, and how, but of no goodbye.
#include "net/star.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>

#include "base/env.h"
#include "base/fork.h"
#include "net/process_server.h"
#include "net/rendezvous.h"
#include "unit/net/ranks.h"

namespace theseus {
namespace {

using testing::eventually;
using testing::run_ranks;
using Stars = std::vector<std::unique_ptr<Star>>;

class Heartbeat {
 public:
  explicit Heartbeat(const char* seconds) { set(seconds); }
  ~Heartbeat() { unsetenv("THESEUS_HEARTBEAT_TIMEOUT"), reload_settings(); }
  static void set(const char* seconds) { setenv("THESEUS_HEARTBEAT_TIMEOUT", seconds, 1), reload_settings(); }
};

Stars connect_all(int ranks) {
  const CommId communicator = random_id();
  const auto hub = ProcessServer::get().value()->addresses().value();
  Stars stars(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](int rank) {
    auto star = Star::connect(communicator, rank, ranks, hub, Deadline::after(30));
    ASSERT_TRUE(star.ok()) << star.status().message();
    stars[static_cast<size_t>(rank)] = std::move(star).value();
  });
  return stars;
}

void expect_failed(Star& star, Code code, const std::string& part) {
  ASSERT_TRUE(eventually([&] { return star.failed(); }));
  EXPECT_EQ(star.status().code(), code);
  EXPECT_NE(star.status().message().find(part), std::string::npos) << star.status().message();
}

TEST(Star, AllGatherGivesEverybodyEverything) {
  for (const int ranks : {1, 2, 9}) {
    Stars stars = connect_all(ranks);
    run_ranks(ranks, [&](int rank) {
      for (int round = 0; round < 20; ++round) {
        const std::string blob = std::to_string(rank) + "/" + std::to_string(round) + std::string(round * 1000, 'x');
        auto result = stars[static_cast<size_t>(rank)]->all_gather(blob, 30);
        ASSERT_TRUE(result.ok()) << result.status().message();
        ASSERT_EQ(result->size(), static_cast<size_t>(ranks));
        EXPECT_EQ((*result)[static_cast<size_t>(rank)], blob);
        EXPECT_EQ((*result)[0].substr(0, 2), "0/");
      }
    });
  }
}

TEST(Star, AllGatherOfLargeBlobs) {
  Stars stars = connect_all(4);
  run_ranks(4, [&](int rank) {
    const std::string blob(kMaxGatherBlob, static_cast<char>('a' + rank));
    auto result = stars[static_cast<size_t>(rank)]->all_gather(blob, 60);
    ASSERT_TRUE(result.ok()) << result.status().message();
    for (int i = 0; i < 4; ++i)
      EXPECT_TRUE((*result)[static_cast<size_t>(i)] == std::string(kMaxGatherBlob, static_cast<char>('a' + i)));
  });
  EXPECT_EQ(stars[0]->all_gather(std::string(kMaxGatherBlob + 1, 'x'), 1).status().code(), Code::InvalidArgument);
}

TEST(Star, AGatherThatTimesOutLeavesTheStarWorking) {
  Stars stars = connect_all(2);
  EXPECT_EQ(stars[0]->all_gather("early", 0.05).status().code(), Code::Timeout);
  EXPECT_TRUE(stars[1]->all_gather("late", 30).ok());  // rank 0's contribution to this one was made
  run_ranks(2, [&](int rank) {
    const auto result = stars[static_cast<size_t>(rank)]->all_gather("again", 30);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result.value(), (std::vector<std::string>{"again", "again"}));
  });
  EXPECT_FALSE(stars[0]->failed());
}

TEST(Star, AGatherCanBeCancelled) {
  Stars stars = connect_all(2);
  std::atomic<bool> cancel{true};
  EXPECT_EQ(stars[0]->all_gather("", Deadline::never().with_cancel(&cancel)).status().code(), Code::InvalidUsage);
}

TEST(Star, GoodbyesInAnyOrderAreNoFailure) {
  for (const std::vector<int>& order : {std::vector<int>{0, 1, 2}, {2, 1, 0}, {1, 0, 2}}) {
    Stars stars = connect_all(3);
    for (size_t i = 0; i < 2; ++i) stars[static_cast<size_t>(order[i])]->close();
    Star& last = *stars[static_cast<size_t>(order[2])];
    const auto gathered = last.all_gather("anybody?", 30);
    EXPECT_EQ(gathered.status().code(), Code::RemoteError);
    EXPECT_NE(gathered.status().message().find("has left"), std::string::npos) << gathered.status().message();
    EXPECT_FALSE(last.failed());
    EXPECT_TRUE(last.dead_ranks().empty());
    std::vector<int> gone{order[0], order[1]};
    std::sort(gone.begin(), gone.end());
    EXPECT_TRUE(eventually([&] { return last.left_ranks() == gone; }));
  }
}

TEST(Star, ALostRankIsNamedToAllOthers) {
  for (const int lost : {0, 2}) {
    Stars stars = connect_all(4);
    std::atomic<int> calls{0};
    for (int rank = 0; rank < 4; ++rank) {
      if (rank != lost) stars[static_cast<size_t>(rank)]->on_failure([&](const Status&) { ++calls; });
    }
    stars[static_cast<size_t>(lost)]->drop();
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == lost) continue;
      expect_failed(*stars[static_cast<size_t>(rank)], Code::RemoteError, "rank " + std::to_string(lost) + " (host ");
      EXPECT_EQ(stars[static_cast<size_t>(rank)]->dead_ranks(), std::vector<int>{lost});
      EXPECT_EQ(stars[static_cast<size_t>(rank)]->all_gather("", 30).status().code(), Code::RemoteError);
    }
    EXPECT_TRUE(eventually([&] { return calls == 3; }));
  }
}

TEST(Star, TheHubWatchesOnAfterRankZeroHasLeft) {
  Stars stars = connect_all(3);
  stars[0]->close();
  stars[2]->drop();
  expect_failed(*stars[1], Code::RemoteError, "rank 2");
}

TEST(Star, AWaitingGatherEndsWhenARankDies) {
  Stars stars = connect_all(3);
  run_ranks(2, [&](int rank) {
    if (rank == 0) {
      const auto result = stars[0]->all_gather("", -1);
      EXPECT_EQ(result.status().code(), Code::RemoteError) << result.status().message();
    } else {
      usleep(30000);
      stars[2]->drop();
    }
  });
}

TEST(Star, AFailureOfOneRankReachesAll) {
  Stars stars = connect_all(3);
  stars[1]->fail(Status(Code::InvalidArgument, "rank 1 called with count 3, rank 0 with 4"));
  EXPECT_TRUE(stars[1]->failed());
  for (auto& star : stars) expect_failed(*star, Code::InvalidArgument, "count 3");
  EXPECT_TRUE(stars[0]->dead_ranks().empty());
  std::atomic<bool> told{false};
  stars[2]->on_failure([&](const Status& status) { told = status.code() == Code::InvalidArgument; });
  EXPECT_TRUE(eventually([&] { return told.load(); }));
}

TEST(Star, NoCallbackAfterClose) {
  Stars stars = connect_all(2);
  auto alive = std::make_unique<std::atomic<int>>(0);
  stars[0]->on_failure([counter = alive.get()](const Status&) { ++*counter; });
  stars[0]->close();
  stars[1]->fail(Status::remote("too late"));
  alive.reset();
  stars[1]->close();
}

TEST(Star, ARankThatNeverComesCountsAsDead) {
  Heartbeat heartbeat("0.3");
  const CommId communicator = random_id();
  auto star = Star::connect(communicator, 0, 2, {}, Deadline::after(30));
  ASSERT_TRUE(star.ok());
  expect_failed(**star, Code::RemoteError, "rank 1 did not come");
}

TEST(Star, TheSlowestRankIsKnownToAll) {
  Heartbeat heartbeat("2");
  Stars stars = connect_all(3);
  stars[0]->set_progress(10, 1);
  stars[1]->set_progress(4, 77);
  stars[2]->set_progress(10, 1);
  EXPECT_TRUE(eventually([&] {
    const Progress slowest = stars[2]->slowest();
    return slowest.rank == 1 && slowest.request == 4 && slowest.signature_hash == 77;
  }));
}

TEST(Star, ConnectEndsAtItsDeadlineWhereNoHubAnswers) {
  ASSERT_TRUE(start_rendezvous_service().ok());
  const auto hub = ProcessServer::get().value()->addresses().value();
  const auto star = Star::connect(random_id(), 1, 2, hub, Deadline::after(0.1));
  EXPECT_EQ(star.status().code(), Code::Timeout);
}

// --- Ranks as processes. The child is a fresh program (this one, told by the environment to be a rank): a forked copy
// would be inert.

const char* kMemberVariable = "STAR_TEST_MEMBER";
const char* kLeavesVariable = "STAR_TEST_LEAVES";

std::string hex_of(const UniqueId& id) {
  std::string text;
  char digits[3];
  for (const char byte : id.bytes) text += (std::snprintf(digits, sizeof digits, "%02x", byte & 0xff), digits);
  return text;
}

UniqueId id_of(const std::string& hex) {
  UniqueId id;
  for (size_t i = 0; i < sizeof id.bytes; ++i)
    id.bytes[i] = static_cast<char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  return id;
}

Result<std::unique_ptr<Star>> join(const UniqueId& id, int rank, int ranks) {
  const auto mine = ProcessServer::get().value()->addresses().value();
  auto table = rendezvous(id, rank, ranks, encode_addresses(mine), Deadline::after(30));
  if (!table.ok()) return table.status();
  return Star::connect(table->communicator, rank, ranks, decode_addresses(table->blobs[0]).value(),
                       Deadline::after(30));
}

// What a child does: joins, takes part in one gather, then leaves and ends at once, or lives until it is killed, or all
// others have gone.
TEST(StarMember, DISABLED_Run) {
  const std::string member = getenv(kMemberVariable);
  const size_t colon = member.find(':');
  auto star = join(id_of(member.substr(colon + 1)), std::stoi(member), 3);
  if (!star.ok()) _exit(3);
  // The death may come before this rank has its table.
  if (!(*star)->all_gather("", 30).ok() && !(*star)->failed()) _exit(5);
  if (getenv(kLeavesVariable) != nullptr) (*star)->close(), _exit(0);
  for (int i = 0; i < 6000 && !(*star)->failed(); ++i) usleep(10000);
  _exit((*star)->failed() ? 0 : 4);
}

pid_t spawn_member(const UniqueId& id, int rank, bool leaves = false) {
  const std::string variable = std::string(kMemberVariable) + "=" + std::to_string(rank) + ":" + hex_of(id);
  std::vector<std::string> environment{variable};
  if (leaves) environment.push_back(std::string(kLeavesVariable) + "=1");
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  std::vector<char*> pointers;
  for (auto& entry : environment) pointers.push_back(entry.data());
  pointers.push_back(nullptr);
  char self[4096] = {};
  if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0) return -1;
  const char* arguments[] = {self, "--gtest_also_run_disabled_tests", "--gtest_filter=StarMember.DISABLED_Run",
                             "--gtest_brief=1", nullptr};
  const pid_t child = vfork();
  if (child == 0) {
    execve(self, const_cast<char**>(arguments), pointers.data());
    _exit(127);
  }
  return child;
}

int exit_code_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void kill_one_of_three(int our_rank, int victim_rank, int other_rank, const char* expected) {
  const UniqueId id = create_unique_id().value();
  const pid_t victim = spawn_member(id, victim_rank);
  const pid_t other = spawn_member(id, other_rank);
  auto star = join(id, our_rank, 3);
  ASSERT_TRUE(star.ok()) << star.status().message();
  ASSERT_TRUE((*star)->all_gather("", 30).ok());
  kill(victim, SIGKILL);
  expect_failed(**star, Code::RemoteError, expected);
  EXPECT_NE((*star)->status().message().find("pid " + std::to_string(victim)), std::string::npos);
  EXPECT_EQ(exit_code_of(victim), -SIGKILL);
  EXPECT_EQ(exit_code_of(other), 0);  // the other survivor learnt of it too
}

TEST(Star, AKilledMemberIsNamedWithItsProcess) { kill_one_of_three(0, 2, 1, "rank 2 (host "); }
TEST(Star, AKilledHubIsNamedWithItsProcess) { kill_one_of_three(1, 0, 2, "rank 0 (host "); }

// The goodbye is out when close() returns: the hub's process may end at that moment.
TEST(Star, RankZeroMayEndItsProcessOnceItHasLeft) {
  for (int attempt = 0; attempt < 5; ++attempt) {
    const UniqueId id = create_unique_id().value();
    const pid_t leaver = spawn_member(id, 0, true);
    const pid_t other = spawn_member(id, 2);
    auto star = join(id, 1, 3);
    ASSERT_TRUE(star.ok()) << star.status().message();
    const auto gathered = (*star)->all_gather("", 30);
    ASSERT_TRUE(gathered.ok()) << gathered.status().message();
    EXPECT_EQ(exit_code_of(leaver), 0);
    EXPECT_TRUE(eventually([&] { return (*star)->left_ranks() == std::vector<int>{0} || (*star)->failed(); }));
    EXPECT_TRUE((*star)->status().ok()) << (*star)->status().message();
    kill(other, SIGKILL);
    exit_code_of(other);
  }
}

TEST(Star, AStoppedProcessIsMissedAfterTheHeartbeatTimeoutOnly) {
  Heartbeat heartbeat("1.5");
  const UniqueId id = create_unique_id().value();
  const pid_t victim = spawn_member(id, 2);
  const pid_t other = spawn_member(id, 1);
  auto star = join(id, 0, 3);
  ASSERT_TRUE(star.ok()) << star.status().message();
  ASSERT_TRUE((*star)->all_gather("", 30).ok());
  kill(victim, SIGSTOP);
  usleep(400000);  // below the limit
  kill(victim, SIGCONT);
  usleep(1500000);
  EXPECT_FALSE((*star)->failed()) << (*star)->status().message();
  kill(victim, SIGSTOP);
  expect_failed(**star, Code::RemoteError, "gave no sign of life for 1.5 s");
  kill(victim, SIGCONT);
  EXPECT_EQ(exit_code_of(other), 0);
  EXPECT_EQ(exit_code_of(victim), 0);  // told of its own death when it came back
}

// Case: a data loader forks after init. The child does no harm, and does not hold the connections open.
TEST(Star, AForkedChildIsInert) {
  Stars stars = connect_all(2);
  const pid_t child = fork();
  if (child == 0) {
    const bool inert = is_forked_child() && stars[0]->all_gather("", 1).status().code() == Code::InvalidUsage &&
                       stars[0]->status().code() == Code::InvalidUsage &&
                       ProcessServer::get().status().code() == Code::InvalidUsage &&
                       create_unique_id().status().code() == Code::InvalidUsage;
    stars.clear();
    _exit(inert ? 0 : 1);
  }
  EXPECT_EQ(exit_code_of(child), 0);
  run_ranks(2, [&](int rank) { EXPECT_TRUE(stars[static_cast<size_t>(rank)]->all_gather("still here", 30).ok()); });

  const pid_t sleeper = fork();
  if (sleeper == 0) {
    pause();
    _exit(0);
  }
  stars[1]->drop();  // the sleeping child must not keep this connection open
  expect_failed(*stars[0], Code::RemoteError, "rank 1");
  kill(sleeper, SIGKILL);
  exit_code_of(sleeper);
}

}  // namespace
}  // namespace theseus
