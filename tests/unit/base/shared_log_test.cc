// The job log: whatever happens to its writer, a reader gets whole records, in order, and never a different one later.
#include "base/shared_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace theseus {
namespace {

constexpr uint64_t kLogId = 0x1234567890abcdef;

class SharedLogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "theseus-log-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = folder_ + "/log";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<SharedLogWriter> writer(uint64_t id = kLogId, uint64_t capacity = 64u << 20) {
    auto opened = SharedLogWriter::open(path_, id, capacity);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return opened.ok() ? std::move(opened).value() : nullptr;
  }
  std::unique_ptr<SharedLogReader> reader() {
    auto opened = SharedLogReader::open(path_);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return opened.ok() ? std::move(opened).value() : nullptr;
  }

  std::string folder_;
  std::string path_;
};

// Any length, any bytes; what record `index` holds in every test.
std::string record(uint64_t index) {
  std::mt19937_64 random(index);
  std::string bytes(random() % 300, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::vector<std::string> read_all(SharedLogReader& reader) {
  std::vector<std::string> all;
  std::string bytes;
  while (true) {
    const auto more = reader.next(bytes);
    EXPECT_TRUE(more.ok()) << more.status().message();
    if (!more.ok() || !more.value()) return all;
    all.push_back(bytes);
  }
}

TEST_F(SharedLogTest, ReadersGetWhatWasWrittenInOrder) {
  const auto log = writer();
  const auto early = reader();
  EXPECT_EQ(early->count(), 0u);
  std::string bytes;
  EXPECT_FALSE(early->next(bytes).value());
  for (uint64_t i = 0; i < 500; ++i) ASSERT_TRUE(log->append(i, record(i)).ok());
  const auto late = reader();
  for (SharedLogReader* each : {early.get(), late.get()}) {
    EXPECT_EQ(each->log_id(), kLogId);
    EXPECT_EQ(each->count(), 500u);
    const auto all = read_all(*each);
    ASSERT_EQ(all.size(), 500u);
    for (uint64_t i = 0; i < 500; ++i) EXPECT_EQ(all[i], record(i));
    EXPECT_EQ(each->position(), 500u);
    EXPECT_FALSE(each->frozen());
  }
  struct stat status{};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(SharedLogTest, EmptyAndLongRecordsPass) {
  const auto log = writer();
  const std::string longest(1 << 20, 'x');
  ASSERT_TRUE(log->append(0, "").ok());
  ASSERT_TRUE(log->append(1, longest).ok());
  EXPECT_EQ(log->append(2, std::string(kLongestLogRecord + 1, 'x')).code(), Code::InvalidArgument);
  EXPECT_EQ(read_all(*reader()), (std::vector<std::string>{"", longest}));
}

TEST_F(SharedLogTest, ReplayIsSkippedAndAGapRefused) {
  const auto log = writer();
  for (uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(log->append(i, record(i)).ok());
  for (uint64_t i = 0; i < 20; ++i) EXPECT_TRUE(log->append(i, record(i)).ok());
  EXPECT_EQ(log->append(21, record(21)).code(), Code::InvalidUsage);
  EXPECT_EQ(log->count(), 20u);
  EXPECT_FALSE(log->frozen());
  EXPECT_EQ(read_all(*reader()).size(), 20u);
}

TEST_F(SharedLogTest, AForkFreezesForGood) {
  auto log = writer();
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(log->append(i, record(i)).ok());
  const auto watching = reader();
  EXPECT_EQ(log->append(1, "another").code(), Code::InvalidUsage);
  EXPECT_TRUE(log->frozen());
  EXPECT_TRUE(watching->frozen());
  EXPECT_EQ(log->append(3, record(3)).code(), Code::InvalidUsage);
  EXPECT_EQ(read_all(*watching).size(), 3u);
  log.reset();
  EXPECT_EQ(SharedLogWriter::open(path_, kLogId).status().code(), Code::InvalidUsage);
}

TEST_F(SharedLogTest, OneWriterAtATimeWhateverReadersHold) {
  auto log = writer();
  EXPECT_EQ(SharedLogWriter::open(path_, kLogId).status().code(), Code::InvalidUsage);
  ASSERT_TRUE(log->append(0, record(0)).ok());
  const int descriptor = fcntl(log->fd(), F_DUPFD_CLOEXEC, 0);
  EXPECT_EQ(fcntl(descriptor, F_GETFL) & O_ACCMODE, O_RDONLY);
  const auto passed = SharedLogReader::from_fd(Fd(descriptor));
  ASSERT_TRUE(passed.ok());
  log.reset();
  log = writer();  // the lock went with the writer, although a reader holds the descriptor that it passed on
  ASSERT_NE(log, nullptr);
  ASSERT_TRUE(log->append(1, record(1)).ok());
  EXPECT_EQ(read_all(**passed), (std::vector<std::string>{record(0), record(1)}));
}

TEST_F(SharedLogTest, AnotherLogsFileIsRefused) {
  {
    ASSERT_TRUE(writer()->append(0, record(0)).ok());
  }
  EXPECT_EQ(SharedLogWriter::open(path_, kLogId + 1).status().code(), Code::InvalidUsage);
  // The file of a dead job: a new log begins where the old file was removed, and old readers keep what they have.
  const auto old = reader();
  ASSERT_EQ(unlink(path_.c_str()), 0);
  const auto log = writer(kLogId + 1);
  ASSERT_TRUE(log->append(0, "new").ok());
  EXPECT_EQ(read_all(*old), std::vector<std::string>{record(0)});
  EXPECT_EQ(reader()->log_id(), kLogId + 1);
}

TEST_F(SharedLogTest, AFullLogRefusesAndStaysReadable) {
  const auto log = writer(kLogId, 4096);
  uint64_t written = 0;
  while (log->append(written, std::string(100, 'a')).ok()) ++written;
  EXPECT_EQ(written, 4096u / 112);
  EXPECT_EQ(log->append(written, std::string(100, 'a')).code(), Code::SystemError);
  EXPECT_FALSE(log->frozen());
  EXPECT_EQ(read_all(*reader()).size(), written);
}

TEST_F(SharedLogTest, ADiskWithoutRoomIsAnErrorAndNotASignal) {
  const auto log = writer();
  ASSERT_TRUE(log->append(0, record(0)).ok());
  // A limit on the size of files stands for a full disk: the same write fails in the same way.
  const auto before = signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small{8192, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = log->append(1, std::string(10000, 'a'));
  setrlimit(RLIMIT_FSIZE, &limit);
  signal(SIGXFSZ, before);
  EXPECT_EQ(status.code(), Code::SystemError);
  EXPECT_EQ(log->count(), 1u);
  // Room again: the same index goes on over what the failed write left.
  ASSERT_TRUE(log->append(1, record(1)).ok());
  EXPECT_EQ(read_all(*reader()), (std::vector<std::string>{record(0), record(1)}));
}

TEST_F(SharedLogTest, AFileCutShortAnywhereIsAnErrorAndNotASignal) {
  {
    const auto log = writer();
    for (uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(log->append(i, record(i)).ok());
  }
  const auto size = std::filesystem::file_size(path_);
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    const std::string copy = folder_ + "/copy";
    std::filesystem::copy_file(path_, copy, std::filesystem::copy_options::overwrite_existing);
    const auto open = SharedLogReader::open(copy);
    ASSERT_TRUE(open.ok());
    std::filesystem::resize_file(copy, random() % size);
    std::string bytes;
    uint64_t seen = 0;
    while (true) {  // opened before the cut
      const auto more = (*open)->next(bytes);
      if (!more.ok()) {
        EXPECT_EQ(more.status().code(), Code::SystemError);
        break;
      }
      ASSERT_TRUE(more.value());
      ASSERT_EQ(bytes, record(seen++));
    }
    if (const auto again = SharedLogReader::open(copy); again.ok()) {  // and after it
      while (true) {
        const auto more = (*again)->next(bytes);
        if (!more.ok()) break;
        ASSERT_TRUE(more.value());
      }
    }
  }
}

TEST_F(SharedLogTest, NoBitCanFlipUnseen) {
  {
    const auto log = writer();
    for (uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(log->append(i, record(i)).ok());
  }
  const auto size = std::filesystem::file_size(path_);
  std::mt19937_64 random(11);
  for (int i = 0; i < 300; ++i) {
    const uint64_t at = 4096 + random() % (size - 4096);
    const Fd fd(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
    char byte = 0;
    ASSERT_EQ(pread(fd.get(), &byte, 1, static_cast<off_t>(at)), 1);
    const char flipped = static_cast<char>(byte ^ (1 << random() % 8));
    ASSERT_EQ(pwrite(fd.get(), &flipped, 1, static_cast<off_t>(at)), 1);
    const auto damaged = reader();
    std::string bytes;
    for (uint64_t seen = 0; seen < 5; ++seen) {
      const auto more = damaged->next(bytes);
      if (!more.ok()) break;
      ASSERT_EQ(bytes, record(seen)) << "byte " << at;  // padding may change, what is read may not
    }
    ASSERT_EQ(pwrite(fd.get(), &byte, 1, static_cast<off_t>(at)), 1);
  }
}

TEST_F(SharedLogTest, StrangeFilesAreRefused) {
  EXPECT_EQ(SharedLogReader::open(path_).status().code(), Code::SystemError);
  const Fd fd(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  EXPECT_EQ(SharedLogReader::open(path_).status().code(), Code::SystemError);
  const std::string noise(10000, 'n');
  ASSERT_EQ(pwrite(fd.get(), noise.data(), noise.size(), 0), 10000);
  EXPECT_EQ(SharedLogReader::open(path_).status().code(), Code::SystemError);
  EXPECT_EQ(SharedLogWriter::open(path_, kLogId).status().code(), Code::SystemError);
  const std::string link = folder_ + "/link";
  ASSERT_EQ(symlink(path_.c_str(), link.c_str()), 0);
  EXPECT_EQ(SharedLogWriter::open(link, kLogId).status().code(), Code::SystemError);
}

// The child's whole life: opens the log, and appends until it is killed.
[[noreturn]] void write_until_killed(const std::string& path) {
  auto log = SharedLogWriter::open(path, kLogId);
  if (!log.ok()) _exit(1);
  for (uint64_t i = 0;; ++i) {  // from the start, as an agent replays its journal
    if (!(*log)->append(i, record(i)).ok()) _exit(2);
  }
}

TEST_F(SharedLogTest, AWriterKilledAtAnyPointLosesNothingPublished) {
  std::mt19937_64 random(3);
  uint64_t least = 0;
  std::unique_ptr<SharedLogReader> watching;
  for (int round = 0; round < 60; ++round) {
    const pid_t child = fork();
    if (child == 0) write_until_killed(path_);
    ASSERT_GT(child, 0);
    usleep(static_cast<useconds_t>(random() % 3000));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer failed by itself with " << WEXITSTATUS(status);
    // Killed before it made the log, the writer leaves none; the next one begins it.
    if (watching == nullptr) {
      auto opened = SharedLogReader::open(path_);
      if (opened.ok()) watching = std::move(opened).value();
    }
    if (watching == nullptr) continue;
    ASSERT_GE(watching->count(), least);
    least = watching->count();
    std::string bytes;
    while (watching->position() < least) {
      const uint64_t index = watching->position();
      const auto more = watching->next(bytes);
      ASSERT_TRUE(more.ok()) << more.status().message();
      ASSERT_TRUE(more.value());
      ASSERT_EQ(bytes, record(index));
    }
  }
  ASSERT_NE(watching, nullptr);
  EXPECT_GT(least, 0u);
  EXPECT_FALSE(watching->frozen());
  const auto log = writer();
  EXPECT_EQ(log->count(), least);
  EXPECT_TRUE(log->append(least, record(least)).ok());
}

TEST_F(SharedLogTest, ManyReadersFollowALiveWriter) {
  const auto log = writer();
  constexpr uint64_t kRecords = 3000;
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this, &right] {
      const auto follower = SharedLogReader::open(path_);
      std::string bytes;
      for (uint64_t seen = 0; seen < kRecords;) {
        const auto more = (*follower)->next(bytes);
        if (!more.ok() || (more.value() && bytes != record(seen))) return;
        if (more.value()) ++seen;
      }
      ++right;
    });
  }
  for (uint64_t i = 0; i < kRecords; ++i) ASSERT_TRUE(log->append(i, record(i)).ok());
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 4);
}

}  // namespace
}  // namespace theseus
