// What every driver promises about memory shared between processes. The other process is this very program, told by
// the environment to run one of the tests named Child.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "unit/drivers/driver_testing.h"

namespace theseus::cuda {
namespace {

constexpr const char* kDriverVariable = "THESEUS_TEST_DRIVER";

struct Message {
  IpcHandle handle;
  uint64_t offset;
};

// A child that reads messages on its standard input, and writes to its standard output.
class Child {
 public:
  Child(const std::string& test, const std::string& driver) {
    int to_child[2], from_child[2];
    EXPECT_EQ(pipe2(to_child, O_CLOEXEC) + pipe2(from_child, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to_child[0], 10);
    posix_spawn_file_actions_adddup2(&actions, from_child[1], 11);
    const std::string filter = "--gtest_filter=Child.DISABLED_" + test;
    const char* arguments[] = {"test_drivers",    filter.c_str(),    "--gtest_also_run_disabled_tests",
                               "--gtest_output=", "--gtest_brief=1", nullptr};  // the results file is the parent's
    setenv(kDriverVariable, driver.c_str(), 1);
    EXPECT_EQ(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, const_cast<char**>(arguments), environ), 0);
    unsetenv(kDriverVariable);
    posix_spawn_file_actions_destroy(&actions);
    close(to_child[0]);
    close(from_child[1]);
    to_ = to_child[1];
    from_ = from_child[0];
  }
  ~Child() {
    close(to_);
    close(from_);
    if (pid_ > 0) end();
  }

  template <class T>
  void send(const T& value) {
    EXPECT_EQ(write(to_, &value, sizeof value), static_cast<ssize_t>(sizeof value));
  }
  template <class T>
  T receive() {
    T value{};
    EXPECT_EQ(read(from_, &value, sizeof value), static_cast<ssize_t>(sizeof value));
    return value;
  }
  // Exit status, -1 where a signal ended it.
  int end() {
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    EXPECT_EQ(end(), -1);
  }

 private:
  pid_t pid_ = 0;
  int to_ = -1;
  int from_ = -1;
};

Driver* childs_driver() {
  const char* kind = std::getenv(kDriverVariable);
  std::string why;
  return kind == nullptr ? nullptr : test_driver(kind, &why);
}

// Adds one to each of 100 bytes that the parent exported, sees what the parent writes later, and lets go.
TEST(Child, DISABLED_Import) {
  Driver* driver = childs_driver();
  ASSERT_NE(driver, nullptr);
  Message message;
  ASSERT_EQ(read(10, &message, sizeof message), static_cast<ssize_t>(sizeof message));
  auto* base = static_cast<uint8_t*>(take(driver->import_memory(0, message.handle)));
  EXPECT_EQ(take(driver->import_memory(0, message.handle)), base);
  const PointerInfo info = take(driver->pointer_info(base + message.offset));
  EXPECT_EQ(info.kind, PointerKind::Device);
  EXPECT_FALSE(info.exportable);
  std::vector<uint8_t> bytes(100);
  expect_ok(driver->copy(0, bytes.data(), base + message.offset, 100, nullptr));
  expect_ok(driver->synchronize(0, Stream()));
  for (uint8_t& byte : bytes) ++byte;
  expect_ok(driver->copy(0, base + message.offset, bytes.data(), 100, nullptr));
  expect_ok(driver->synchronize(0, Stream()));
  expect_ok(driver->release_import(0, base));
  expect_ok(driver->release_import(0, base));
  EXPECT_FALSE(driver->release_import(0, base).ok());
  const bool done = !testing::Test::HasFailure();
  ASSERT_EQ(write(11, &done, sizeof done), static_cast<ssize_t>(sizeof done));
}

// Exports 4096 bytes and then waits to be told, or killed.
TEST(Child, DISABLED_Export) {
  Driver* driver = childs_driver();
  ASSERT_NE(driver, nullptr);
  void* memory = take(driver->allocate(0, 4096));
  expect_ok(driver->fill(0, memory, 77, 4096, nullptr));
  expect_ok(driver->synchronize(0, Stream()));
  const IpcHandle handle = take(driver->export_memory(memory));
  ASSERT_EQ(write(11, &handle, sizeof handle), static_cast<ssize_t>(sizeof handle));
  bool told = false;
  if (read(10, &told, sizeof told) != sizeof told) return;
  expect_ok(driver->release(0, memory));
  ASSERT_EQ(write(11, &told, sizeof told), static_cast<ssize_t>(sizeof told));
  static_cast<void>(read(10, &told, sizeof told));
}

class IpcContract : public OnEachDriver {};
ON_DRIVERS(IpcContract, "emulator", "fake", "real");

TEST_P(IpcContract, AnotherProcessReadsAndWritesExportedMemory) {
  auto* memory = device_memory<uint8_t>(10000);
  std::vector<uint8_t> values(10000, 3);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint8_t>(i);
  to_device(memory, values);
  Child child("Import", GetParam());
  child.send(Message{take(driver().export_memory(memory + 5000)), 5000});
  EXPECT_TRUE(child.receive<bool>());
  EXPECT_EQ(child.end(), 0);
  for (size_t i = 5000; i < 5100; ++i) ++values[i];
  EXPECT_EQ(from_device(memory, 10000), values);
}

TEST_P(IpcContract, OnlyOwnDeviceMemoryIsExported) {
  void* pinned = take(driver().allocate_pinned(100));
  int local = 0;
  EXPECT_EQ(driver().export_memory(pinned).status().code(), Code::InvalidArgument);
  EXPECT_EQ(driver().export_memory(&local).status().code(), Code::InvalidArgument);
  EXPECT_EQ(driver().export_memory(nullptr).status().code(), Code::InvalidArgument);
  expect_ok(driver().release_pinned(pinned));
}

TEST_P(IpcContract, TheExporterUsesItsPointer) {
  const IpcHandle handle = take(driver().export_memory(device_memory<char>(100)));
  EXPECT_EQ(driver().import_memory(0, handle).status().code(), Code::InvalidUsage);
}

TEST_P(IpcContract, GarbageIsNotImported) {
  EXPECT_FALSE(driver().import_memory(0, IpcHandle()).ok());
  IpcHandle handle;
  handle.bytes.fill(0xff);
  EXPECT_FALSE(driver().import_memory(0, handle).ok());
}

// What the exporter released, and what went with it, is refused; what was imported before stays readable.
TEST_P(IpcContract, MemoryThatIsGoneIsRefused) {
  Child releasing("Export", GetParam());
  const IpcHandle released = releasing.receive<IpcHandle>();
  releasing.send(true);
  EXPECT_TRUE(releasing.receive<bool>());
  EXPECT_FALSE(driver().import_memory(0, released).ok());

  Child killed("Export", GetParam());
  const IpcHandle handle = killed.receive<IpcHandle>();
  auto* imported = static_cast<uint8_t*>(take(driver().import_memory(0, handle)));
  EXPECT_EQ(from_device(imported, 4096), std::vector<uint8_t>(4096, 77));
  killed.kill();
  expect_ok(driver().release_import(0, imported));
  EXPECT_FALSE(driver().import_memory(0, handle).ok());
}

}  // namespace
}  // namespace theseus::cuda
