#include "transport/pacing.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/env.h"
#include "base/ids.h"
#include "tcp_testing.h"

namespace theseus {
namespace {

constexpr uint64_t kRate = 25'000'000;
constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kStart = 1000 * kSecond;

// --- The bucket alone, on a clock of its own.

// Moves quanta from `from` to `to`, looking `late` after each is due; returns the bytes moved.
uint64_t move_between(TokenBucket& bucket, uint64_t from, uint64_t to, uint64_t late) {
  uint64_t bytes = 0;
  for (uint64_t now = from; now < to; now = std::max(now + 1, bucket.due() + late)) {
    while (bucket.open(now)) {
      bucket.charge(bucket.quantum(), now);
      bytes += bucket.quantum();
    }
  }
  return bytes;
}

TEST(TokenBucket, IsUnlimitedAsLongAsNobodySetsARate) {
  TokenBucket bucket{};
  bucket.charge(size_t{1} << 40, kStart);
  EXPECT_TRUE(bucket.open(kStart));
  EXPECT_EQ(bucket.due(), 0u);
}

// Ten seconds at 25 MB/s are 250 MB, give or take a burst, even for one who wakes up 3 ms late each time.
TEST(TokenBucket, KeepsItsRateThoughUsersWakeUpLate) {
  for (const uint64_t late : {0, 100'000, 3'000'000}) {
    TokenBucket bucket{};
    bucket.set_rate(kRate, kStart);
    const auto moved = static_cast<double>(move_between(bucket, kStart, kStart + 10 * kSecond, late));
    EXPECT_NEAR(moved, 10.0 * kRate, 0.003 * 10.0 * kRate) << late;
  }
}

// A long pause saves up one burst, not more.
TEST(TokenBucket, SavesUpNoMoreThanABurst) {
  TokenBucket bucket{};
  bucket.set_rate(kRate, kStart);
  uint64_t bytes = 0;
  const uint64_t later = kStart + 100 * kSecond;
  while (bucket.open(later)) {
    bucket.charge(4096, later);
    bytes += 4096;
  }
  EXPECT_GE(bytes, 64u << 10);
  EXPECT_LE(bytes, 264u << 10);
}

// A new rate holds at once, also after a rate near zero at which one quantum would have taken an hour.
TEST(TokenBucket, ChangesItsRateAtOnce) {
  TokenBucket bucket{};
  bucket.set_rate(kRate, kStart);
  move_between(bucket, kStart, kStart + kSecond, 0);
  bucket.set_rate(kRate / 10, kStart + kSecond);
  const auto slow = static_cast<double>(move_between(bucket, kStart + kSecond, kStart + 3 * kSecond, 0));
  EXPECT_NEAR(slow, 2.0 * kRate / 10, 0.05 * kRate);
  bucket.set_rate(1, kStart + 3 * kSecond);
  EXPECT_LE(move_between(bucket, kStart + 3 * kSecond, kStart + 60 * kSecond, 0), 2u * (64u << 10));
  EXPECT_FALSE(bucket.open(kStart + 60 * kSecond));
  bucket.set_rate(kRate, kStart + 60 * kSecond);
  const auto fast = static_cast<double>(move_between(bucket, kStart + 60 * kSecond, kStart + 61 * kSecond, 0));
  EXPECT_NEAR(fast, kRate, 0.02 * kRate);
  bucket.set_rate(0, kStart + 61 * kSecond);
  EXPECT_TRUE(bucket.open(kStart + 61 * kSecond));
}

// --- Shared by the processes of a host.

std::string fresh_host() { return "pacing-test-" + random_id().to_string(); }

std::unique_ptr<Pacing> open_pacing(const std::string& host, uint64_t rate) {
  Result<std::unique_ptr<Pacing>> pacing = Pacing::open(host, rate);
  EXPECT_TRUE(pacing.ok()) << pacing.status().message();
  return std::move(*pacing);
}

void await_ownership(const Pacing& pacing) {
  while (!pacing.is_owner()) usleep(1000);  // the runner's own timeout is what fails this test
}

// All who name the same host see the same buckets; who names another sees others.
TEST(Pacing, IsSharedWithinAHostOnly) {
  const std::string host = fresh_host();
  const auto first = open_pacing(host, kRate), second = open_pacing(host, 2 * kRate);
  const auto other = open_pacing(fresh_host(), 3 * kRate);
  EXPECT_EQ(second->egress(3).rate(), kRate) << "who comes first decides";
  EXPECT_EQ(other->egress(3).rate(), 3 * kRate);
  second->set_rate(3, 1000);
  EXPECT_EQ(first->egress(3).rate(), 1000u);
  EXPECT_EQ(first->ingress(3).rate(), 1000u);
  EXPECT_EQ(first->egress(2).rate(), kRate);
  const uint64_t now = now_ns();
  first->ingress(1).charge(kRate, now);
  EXPECT_GT(second->ingress(1).due(), now + kSecond / 2);
  EXPECT_LE(second->egress(1).due(), now);
}

// One who has no part in a host sets the speed of its NICs, each way by itself; a host that is not there is an error.
TEST(Pacing, SetsRatesFromOutside) {
  const std::string host = fresh_host();
  EXPECT_EQ(Pacing::set_rate_of(host, 0, 5).code(), Code::RemoteError);
  const auto pacing = open_pacing(host, kRate);
  ASSERT_TRUE(Pacing::set_rate_of(host, 4, 1000, Direction::Ingress).ok());
  EXPECT_EQ(pacing->ingress(4).rate(), 1000u);
  EXPECT_EQ(pacing->egress(4).rate(), kRate);
  ASSERT_TRUE(Pacing::set_rate_of(host, 4, 2000).ok());
  EXPECT_EQ(pacing->ingress(4).rate(), 2000u);
  EXPECT_EQ(pacing->egress(4).rate(), 2000u);
  EXPECT_EQ(Pacing::set_rate_of(host, PacingPage::kRails, 1).code(), Code::InvalidArgument);
  // A virtual host goes by its name as well.
  const auto named = open_pacing("virtual:" + host, kRate);
  const auto other = open_pacing(fresh_host(), kRate);
  ASSERT_TRUE(Pacing::set_rate_of("virtual:" + host, 1, 3000).ok());
  EXPECT_EQ(named->egress(1).rate(), 3000u);
  EXPECT_EQ(other->egress(1).rate(), kRate);
}

// The page outlives whoever made it, and newcomers still find it.
TEST(Pacing, OutlivesItsOwner) {
  const std::string host = fresh_host();
  auto first = open_pacing(host, kRate);
  const auto second = open_pacing(host, kRate), third = open_pacing(host, kRate);
  EXPECT_TRUE(first->is_owner());
  second->set_rate(0, 777);
  first.reset();
  while (!second->is_owner() && !third->is_owner()) usleep(1000);
  EXPECT_NE(second->is_owner(), third->is_owner());
  const auto newcomer = open_pacing(host, kRate);
  EXPECT_EQ(newcomer->egress(0).rate(), 777u);
  newcomer->set_rate(0, 778);
  EXPECT_EQ(second->egress(0).rate(), 778u);
  EXPECT_EQ(third->egress(0).rate(), 778u);
}

// The other process is a fresh program (this one, told by the environment what to do): a forked copy would be inert.
constexpr const char* kChildVariable = "PACING_TEST_CHILD";

// Takes what the bucket gives for a while; returns the bytes.
uint64_t draw(TokenBucket& bucket, double seconds) {
  uint64_t bytes = 0;
  for (const Deadline end = Deadline::after(seconds); !end.expired(); usleep(200)) {
    if (!bucket.open(now_ns())) continue;
    bucket.charge(bucket.quantum(), now_ns());
    bytes += bucket.quantum();
  }
  return bytes;
}

// "HOST PIPE": opens HOST's pacing, reports over the pipe, draws, reports the bytes, lives on until it is killed.
TEST(PacingChild, DISABLED_Run) {
  const std::string task = getenv(kChildVariable);
  const int pipe_end = std::stoi(task.substr(task.find(' ')));
  const auto pacing = open_pacing(task.substr(0, task.find(' ')), kRate);
  uint64_t report = 1;
  if (write(pipe_end, &report, sizeof report) != sizeof report) _exit(1);
  report = draw(pacing->egress(5), 0.5);
  if (write(pipe_end, &report, sizeof report) != sizeof report) _exit(1);
  for (;;) pause();
}

class Child {
 public:
  explicit Child(const std::string& host) {
    int ends[2];
    if (pipe(ends) != 0) abort();
    read_end_ = ends[0];
    const std::string variable = std::string(kChildVariable) + "=" + host + " " + std::to_string(ends[1]);
    std::vector<char*> environment{const_cast<char*>(variable.c_str())};
    for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
    environment.push_back(nullptr);
    char self[4096] = {};
    if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0) abort();
    const char* arguments[] = {self, "--gtest_also_run_disabled_tests", "--gtest_filter=PacingChild.DISABLED_Run",
                               "--gtest_brief=1", nullptr};
    pid_ = vfork();
    if (pid_ == 0) {
      execve(self, const_cast<char**>(arguments), environment.data());
      _exit(127);
    }
    close(ends[1]);
  }
  ~Child() {
    kill();
    close(read_end_);
  }
  // 0 where the child died.
  uint64_t report() {
    uint64_t value = 0;
    return read(read_end_, &value, sizeof value) == sizeof value ? value : 0;
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
  int read_end_ = -1;
};

// Two processes together get what one NIC carries, and each of them a part of it.
TEST(Pacing, TwoProcessesShareOneNic) {
  const std::string host = fresh_host();
  const uint64_t start = now_ns();
  Child child(host);
  ASSERT_EQ(child.report(), 1u);
  const auto pacing = open_pacing(host, kRate);
  const uint64_t mine = draw(pacing->egress(5), 0.5);
  const uint64_t others = child.report();
  const double seconds = static_cast<double>(now_ns() - start) / 1e9;
  EXPECT_GT(mine, 0u);
  EXPECT_GT(others, 0u);
  // A burst may have been saved up, and a quantum each be owed still.
  EXPECT_LE(static_cast<double>(mine + others), seconds * kRate + (384 << 10));
}

// The process that hands out the page is killed: the survivors keep page and rates, and one takes the name over.
TEST(Pacing, SurvivesTheDeathOfTheOwningProcess) {
  const std::string host = fresh_host();
  Child child(host);
  ASSERT_EQ(child.report(), 1u);
  const auto survivor = open_pacing(host, 99);
  EXPECT_FALSE(survivor->is_owner());
  survivor->set_rate(1, 4242);
  child.kill();
  await_ownership(*survivor);
  const auto newcomer = open_pacing(host, 99);
  EXPECT_EQ(newcomer->egress(1).rate(), 4242u);
  EXPECT_EQ(newcomer->egress(2).rate(), kRate);
}

// --- Under the transport.

// Sends `bytes` from rank 0 to rank 1; returns the bytes per second, counted to the arrival of the last one.
double goodput(testing::TcpWorld& world, uint64_t bytes, size_t slot_bytes) {
  SendPort* send = *world.links[0]->send_port(1, 0, 0);
  RecvPort* recv = *world.links[1]->recv_port(0, 0, 0);
  uint64_t sent = 0, received = 0;
  const uint64_t start = now_ns();
  while (received < bytes) {
    if (sent < bytes && send->acquire(slot_bytes) != nullptr) {
      send->commit(slot_bytes);
      sent += slot_bytes;
    }
    if (const Message* message = recv->peek(); message != nullptr) {
      received += message->bytes;
      recv->release();
    }
    for (auto& links : world.links) {
      const Status status = links->progress();
      EXPECT_TRUE(status.ok()) << status.message();
      if (!status.ok()) return 0;
    }
    world.links[1]->wait(100'000);
  }
  return static_cast<double>(received) * 1e9 / static_cast<double>(now_ns() - start);
}

// Data never flows faster than THESEUS_NIC_RATE, whatever the machine could do, and follows a change of the rate.
TEST(Pacing, BoundsWhatLinksSend) {
  setenv("THESEUS_HOST", fresh_host().c_str(), 1);
  setenv("THESEUS_NIC_RATE", "160Mbit", 1);
  reload_settings();
  {
    constexpr size_t kSlotBytes = 64 << 10;
    testing::TcpWorld world(2, 1, kSlotBytes, 4);
    constexpr double kAhead = 384 << 10;  // a burst saved up at the start, a quantum owed at the end
    EXPECT_LT(goodput(world, 4 << 20, kSlotBytes), 20e6 / (1 - kAhead / (4 << 20)));
    Result<Pacing*> pacing = Pacing::for_this_host();
    ASSERT_TRUE(pacing.ok());
    (*pacing)->set_rate(0, 5'000'000);
    EXPECT_LT(goodput(world, 2 << 20, kSlotBytes), 5e6 / (1 - kAhead / (2 << 20)));
    (*pacing)->set_rate(0, 0);
    EXPECT_GT(goodput(world, 32 << 20, kSlotBytes), 20e6) << "0 lifts the limit";
  }
  unsetenv("THESEUS_HOST");
  unsetenv("THESEUS_NIC_RATE");
  reload_settings();
  EXPECT_EQ(*Pacing::for_this_host(), nullptr);
}

}  // namespace
}  // namespace theseus
