// Clock, ids, futex and descriptors: the small promises everything else relies on.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <thread>

#include "base/clock.h"
#include "base/cores.h"
#include "base/fd.h"
#include "base/fork.h"
#include "base/futex.h"
#include "base/ids.h"
#include "base/random.h"

namespace theseus {
namespace {

TEST(Deadline, EndsByTimeOrByCancel) {
  EXPECT_TRUE(Deadline::after(0).expired());
  EXPECT_FALSE(Deadline::after(1000).expired());
  EXPECT_FALSE(Deadline::after(-1).expired());
  EXPECT_TRUE(Deadline::after(-1).is_never());
  EXPECT_TRUE(Deadline::after(1e30).is_never());
  EXPECT_EQ(Deadline::never().poll_milliseconds(), -1);
  EXPECT_TRUE(Deadline::never().at_most(0).expired());
  EXPECT_FALSE(Deadline::after(0).plus(1000).expired());
  std::atomic<bool> cancel{false};
  const Deadline deadline = Deadline::never().with_cancel(&cancel);
  EXPECT_LE(deadline.poll_milliseconds(), 50);
  EXPECT_GT(deadline.poll_milliseconds(), 0);
  EXPECT_EQ(Deadline::after(0).status("it").code(), Code::Timeout);
  cancel = true;
  EXPECT_TRUE(deadline.expired());
  EXPECT_TRUE(deadline.at_most(10).expired());
  EXPECT_EQ(deadline.status("it").code(), Code::InvalidUsage);
}

TEST(Ids, DerivedIdsDependOnEverythingAndNothingElse) {
  const Id128 parent = random_id();
  EXPECT_EQ(derive_id(parent, "split 1"), derive_id(parent, "split 1"));
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(derive_id(parent, "split " + std::to_string(i)).to_string());
  seen.insert(derive_id(Id128{parent.high ^ 1, parent.low}, "split 1").to_string());
  seen.insert(derive_id(Id128{parent.high, parent.low ^ 1}, "split 1").to_string());
  seen.insert(derive_id(parent, "").to_string());
  EXPECT_EQ(seen.size(), 1003u);
  EXPECT_FALSE(random_id() == random_id());
  EXPECT_EQ((Id128{1, 0xab}).to_string(), "000000000000000100000000000000ab");
}

// Ranks that a launcher binds to a core each have as many cores together as there are ranks.
TEST(Cores, MasksAddUp) {
  const std::string first("\x01", 1), second("\x02", 1), tenth("\0\x02", 2);
  EXPECT_EQ(count_cores({first}), 1);
  EXPECT_EQ(count_cores({first, first}), 1);
  EXPECT_EQ(count_cores({first, second, tenth}), 3);
  EXPECT_EQ(count_cores({}), 1);
  EXPECT_GE(count_cores({core_mask()}), 1);
}

TEST(Futex, WakesAcrossProcessesAndTimesOut) {
  void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* word = new (memory) std::atomic<uint32_t>(0);
  EXPECT_FALSE(futex_wait(*word, 0, 1000000));
  EXPECT_TRUE(futex_wait(*word, 1, -1));  // holds another value: no sleep
  const pid_t child = fork();
  if (child == 0) {
    usleep(20000);
    word->store(1);
    futex_wake(*word);
    _exit(0);
  }
  while (word->load() == 0) ASSERT_TRUE(futex_wait(*word, 0, 20000000000));
  waitpid(child, nullptr, 0);
  munmap(memory, 4096);
}

TEST(Fd, ClosesOnceAndMoves) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Fd reader(ends[0]);
  Fd writer(ends[1]);
  Fd moved = std::move(writer);
  EXPECT_FALSE(writer.valid());
  EXPECT_EQ(moved.get(), ends[1]);
  moved.reset();
  char byte;
  EXPECT_EQ(read(reader.get(), &byte, 1), 0);  // the other end is closed
  const int released = reader.release();
  EXPECT_FALSE(reader.valid());
  EXPECT_EQ(close(released), 0);
}

TEST(Fork, AChildIsMarkedHasNoCopiesAndClosesNothingOfItsOwn) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  arm_fork_guard();
  Fd reader(ends[0]);
  Fd writer(ends[1]);
  EXPECT_FALSE(is_forked_child());
  const pid_t child = fork();
  if (child == 0) {
    bool good = is_forked_child() && check_not_forked().code() == Code::InvalidUsage;
    good = good && fcntl(ends[0], F_GETFD) == -1 && fcntl(ends[1], F_GETFD) == -1;
    // The numbers are given out again; our destructors must leave the new owner alone.
    const int again = open("/dev/null", O_RDONLY);
    reader.reset();
    writer.reset();
    good = good && fcntl(again, F_GETFD) != -1;
    _exit(good ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(write(writer.get(), "x", 1), 1);
  EXPECT_FALSE(is_forked_child());
}

}  // namespace
}  // namespace theseus
