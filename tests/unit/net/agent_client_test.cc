// A process's connection to the node's agent, against an agent that the test plays: whatever that does, calls return,
// nothing is asked twice, and what was told is told again to the next one.
#include "net/agent_client.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "net/agent_frames.h"
#include "net/agent_start.h"
#include "net/process_server.h"
#include "net/wire.h"

namespace theseus {
namespace {

constexpr double kPatience = 60;  // bounds what must come; nothing is measured
constexpr uint32_t kVersion = 2;
constexpr uint32_t kHello = 1, kWelcome = 2, kMembers = 3, kAppend = 4, kResult = 5, kReport = 8;
const char* const kHost = "host of the test";

const std::string& job() {
  static const std::string name = "agent-client-test-" + std::to_string(getpid());
  return name;
}

template <class Condition>
bool eventually(Condition condition) {
  const Deadline deadline = Deadline::after(kPatience);
  while (!condition()) {
    if (deadline.expired()) return false;
    usleep(2000);
  }
  return true;
}

// The agent's side, one client at a time.
class FakeAgent {
 public:
  FakeAgent() {
    listener_ = Fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const std::string name = agent_socket_name(job(), kHost);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_.get(), 8), 0);
  }

  // Takes the next client, and its hello.
  AgentFrame meet() {
    client_ = Fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(client_.valid());
    return take();
  }
  AgentFrame take() {
    uint32_t head[2] = {0, 0};
    Fd descriptor = read(head, sizeof head);
    AgentFrame frame{head[1] & 0x7fffffffu, std::string(head[0], '\0'), std::move(descriptor)};
    if (!frame.payload.empty()) read(frame.payload.data(), frame.payload.size());
    EXPECT_EQ((head[1] & 0x80000000u) != 0, frame.descriptor.valid());
    return frame;
  }
  void say(uint32_t kind, const std::string& payload, int descriptor = -1) {
    const uint32_t head[2] = {static_cast<uint32_t>(payload.size()), kind | (descriptor < 0 ? 0 : 0x80000000u)};
    std::string bytes(reinterpret_cast<const char*>(head), sizeof head);
    bytes += payload;
    iovec part{bytes.data(), bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (descriptor >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* first = CMSG_FIRSTHDR(&message);
      first->cmsg_level = SOL_SOCKET;
      first->cmsg_type = SCM_RIGHTS;
      first->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(first), &descriptor, sizeof descriptor);
    }
    EXPECT_EQ(sendmsg(client_.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  void welcome(uint64_t log_id, int log, const std::string& of_job = job()) {
    WireWriter out;
    out.number(kVersion).number(log_id).text("10.0.0.1:4000").text(of_job).text(kHost).text("/bodies");
    say(kWelcome, out.take(), log);
  }
  void result(uint64_t ticket, Code code, const std::string& sentence) {
    say(kResult, WireWriter().number(ticket).number(static_cast<uint32_t>(code)).text(sentence).take());
  }
  // True where the client closes the connection.
  bool is_left() {
    char byte = 0;
    return recv(client_.get(), &byte, 1, 0) <= 0;
  }

 private:
  Fd read(void* data, size_t bytes) {
    Fd found;
    auto* to = static_cast<char*>(data);
    while (bytes > 0) {
      pollfd ready{client_.get(), POLLIN, 0};
      if (poll(&ready, 1, static_cast<int>(kPatience * 1000)) != 1) break;
      iovec part{to, bytes};
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      const ssize_t got = recvmsg(client_.get(), &message, MSG_CMSG_CLOEXEC);
      if (got <= 0) break;
      if (const cmsghdr* first = CMSG_FIRSTHDR(&message); first != nullptr) {
        int descriptor = -1;
        std::memcpy(&descriptor, CMSG_DATA(first), sizeof descriptor);
        found = Fd(descriptor);
      }
      to += got;
      bytes -= static_cast<size_t>(got);
    }
    EXPECT_EQ(bytes, 0u) << "the client said nothing in time, or left";
    return found;
  }

  Fd listener_;
  Fd client_;
};

Fd memory_with(const std::string& text) {
  Fd fd(memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(pwrite(fd.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  return fd;
}

std::string text_of(const Fd& fd) {
  std::string text(1000, '\0');
  const ssize_t got = pread(fd.get(), text.data(), text.size(), 0);
  text.resize(got < 0 ? 0 : static_cast<size_t>(got));
  return text;
}

struct Hello {
  uint32_t pid = 0;
  uint64_t nonce = 0;
};
Hello read_hello(const AgentFrame& frame) {
  EXPECT_EQ(frame.kind, kHello);
  WireReader in(frame.payload);
  Hello hello;
  EXPECT_EQ(in.number<uint32_t>(), kVersion);
  hello.pid = in.number<uint32_t>();
  EXPECT_EQ(in.number<uint32_t>(), 0u);
  hello.nonce = in.number<uint64_t>();
  EXPECT_EQ(in.text(), job());
  EXPECT_EQ(in.text(), kHost);
  EXPECT_TRUE(in.at_end());
  return hello;
}

struct Append {
  uint64_t ticket = 0;
  std::string record;
};
Append read_append(const AgentFrame& frame) {
  EXPECT_EQ(frame.kind, kAppend);
  WireReader in(frame.payload);
  Append append;
  append.ticket = in.number<uint64_t>();
  append.record = in.text();
  EXPECT_TRUE(in.at_end());
  return append;
}

std::shared_ptr<std::promise<Status>> append(const std::string& record, Fd body = Fd()) {
  auto outcome = std::make_shared<std::promise<Status>>();
  AgentClient::instance().append(record, std::move(body), [outcome](Status status) { outcome->set_value(status); });
  return outcome;
}

// A process has one client, so the tests share it: each plays an agent, and leaves as one that died.
class AgentClientTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const Fd page = memory_with("flow page");
    AgentClient::instance().start(job(), kHost, page.get());
    AgentClient::instance().start("another job", "another host", -1);  // changes nothing
  }

  std::unique_ptr<SharedLogWriter> make_log(uint64_t id) {
    path_ = (std::filesystem::temp_directory_path() / ("theseus-client-" + std::to_string(random_u64()))).string();
    return std::move(*SharedLogWriter::open(path_, id));
  }
  void TearDown() override {
    if (!path_.empty()) unlink(path_.c_str());
  }
  std::string path_;
};

TEST_F(AgentClientTest, WithoutAnAgentAppendsFailAndNothingElseHappens) {
  EXPECT_FALSE(AgentClient::instance().connected());
  const Status status = append("record")->get_future().get();
  EXPECT_EQ(status.code(), Code::SystemError);
  EXPECT_NE(status.message().find("theseus agent"), std::string::npos);
}

TEST_F(AgentClientTest, GreetsAndGetsTheLog) {
  static std::atomic<int> calls{0};  // listeners stay for the life of the process
  AgentClient::instance().on_log([] { ++calls; });
  const auto log = make_log(77);
  ASSERT_TRUE(log->append(0, "first").ok());
  FakeAgent agent;
  const AgentFrame hello = agent.meet();
  EXPECT_EQ(read_hello(hello).pid, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(text_of(hello.descriptor), "flow page");
  agent.welcome(0, -1);
  ASSERT_TRUE(eventually([] { return AgentClient::instance().connected(); }));
  EXPECT_EQ(AgentClient::instance().raft_address(), "10.0.0.1:4000");
  EXPECT_EQ(AgentClient::instance().body_folder(), "/bodies");
  EXPECT_EQ(calls, 0);
  agent.welcome(77, log->fd());
  ASSERT_TRUE(eventually([] { return calls == 1; }));
  EXPECT_EQ(AgentClient::instance().log_id(), 77u);
  agent.welcome(77, log->fd());  // the same once more is no news
  const auto reader = AgentClient::instance().open_log();
  ASSERT_NE(reader, nullptr);
  ASSERT_TRUE(log->append(1, "second").ok());
  std::string bytes;
  ASSERT_TRUE(reader->next(bytes).value());
  ASSERT_TRUE(reader->next(bytes).value());
  EXPECT_EQ(bytes, "second");
  const auto outcome = append("record", memory_with("the plan"));
  const AgentFrame frame = agent.take();
  EXPECT_EQ(text_of(frame.descriptor), "the plan");
  EXPECT_EQ(calls, 1);
  agent.result(read_append(frame).ticket, Code::Success, "");
  EXPECT_TRUE(outcome->get_future().get().ok());
  AgentClient::instance().on_log([] { ++calls; });  // a late listener hears of the log that is there
  ASSERT_TRUE(eventually([] { return calls == 2; }));
  agent.welcome(78, log->fd());
  ASSERT_TRUE(eventually([] { return calls == 4; }));
  EXPECT_EQ(AgentClient::instance().log_id(), 78u);
}

TEST_F(AgentClientTest, RefusalsArriveWithTheirReasonAndInAnyOrder) {
  FakeAgent agent;
  agent.meet();
  agent.welcome(0, -1);
  const auto first = append("one");
  const auto second = append("two");
  const Append one = read_append(agent.take());
  const Append two = read_append(agent.take());
  EXPECT_EQ(one.record, "one");
  EXPECT_EQ(two.record, "two");
  agent.result(two.ticket, Code::InvalidArgument, "a name is taken");
  agent.result(one.ticket, Code::Timeout, "no quorum");
  agent.result(12345, Code::Success, "");  // whoever asked does not wait any more
  const Status refused = second->get_future().get();
  EXPECT_EQ(refused.code(), Code::InvalidArgument);
  EXPECT_EQ(refused.message(), "a name is taken");
  EXPECT_EQ(first->get_future().get().code(), Code::Timeout);
}

TEST_F(AgentClientTest, TheNextAgentIsToldEverythingAgain) {
  auto agent = std::make_unique<FakeAgent>();
  const Hello before = read_hello(agent->meet());
  agent->welcome(0, -1);
  AgentClient::instance().set_members("secret", {{"a", "x"}, {"b", "y"}});
  const std::string members = agent->take().payload;
  EXPECT_EQ(members, WireWriter().text("secret").number(2u).text("a").text("x").text("b").text("y").take());
  const auto outcome = append("record", memory_with("the plan"));
  const Append asked = read_append(agent->take());
  agent.reset();  // died without an answer
  agent = std::make_unique<FakeAgent>();
  EXPECT_EQ(read_hello(agent->meet()).nonce, before.nonce);
  const AgentFrame again = agent->take();
  EXPECT_EQ(again.kind, kMembers);
  EXPECT_EQ(again.payload, members);
  const AgentFrame repeated = agent->take();
  EXPECT_EQ(read_append(repeated).ticket, asked.ticket);  // by which the agents know it
  EXPECT_EQ(text_of(repeated.descriptor), "the plan");
  agent->welcome(0, -1);
  agent->result(asked.ticket, Code::Success, "");
  EXPECT_TRUE(outcome->get_future().get().ok());
}

// Reports are for whoever reads them now: none is kept for an agent to come, nor piles up before one that does not
// read.
TEST_F(AgentClientTest, ReportsAreDroppedWhereNobodyReads) {
  ASSERT_TRUE(eventually([] { return !AgentClient::instance().connected(); }));
  AgentClient::instance().report("to nobody");
  FakeAgent agent;
  agent.meet();
  AgentClient::instance().report("before the welcome");
  ProcessServer::get().value()->loop().run([] {});  // what was posted before is done
  agent.welcome(0, -1);
  ASSERT_TRUE(eventually([] { return AgentClient::instance().connected(); }));
  AgentClient::instance().report("to the agent");
  AgentFrame frame = agent.take();
  if (frame.kind == kMembers) frame = agent.take();  // told by another test
  EXPECT_EQ(frame.kind, kReport);
  EXPECT_EQ(frame.payload, "to the agent");
  const std::string large(100'000, 'r');
  constexpr int kReports = 1000;
  for (int i = 0; i < kReports; ++i) AgentClient::instance().report(large);
  const auto outcome = append("record");  // goes out behind those that were not dropped
  int reports = 0;
  for (frame = agent.take(); frame.kind == kReport; frame = agent.take()) ++reports;
  EXPECT_GT(reports, 0);
  EXPECT_LT(reports, kReports);
  agent.result(read_append(frame).ticket, Code::Success, "");
  EXPECT_TRUE(outcome->get_future().get().ok());
}

TEST_F(AgentClientTest, AnAgentThatTalksNonsenseIsLeft) {
  FakeAgent agent;
  const std::string head = WireWriter().number(kVersion).number(uint64_t{0}).take();
  const std::vector<std::pair<uint32_t, std::string>> nonsense = {
      {kWelcome, ""}, {kWelcome, head}, {kWelcome, head + std::string(4, '\xff')},
      {99, ""},       {kResult, "x"},   {kResult, WireWriter().number(uint64_t{1}).number(99u).text("").take()}};
  for (const auto& [kind, payload] : nonsense) {
    agent.meet();
    agent.say(kind, payload);
    while (!agent.is_left()) {
    }
  }
  agent.meet();
  agent.welcome(0, -1, "another job");
  while (!agent.is_left()) {
  }
  agent.meet();
  agent.welcome(79, -1);  // a log that does not come along
  while (!agent.is_left()) {
  }
  agent.meet();
  agent.welcome(0, -1);
  EXPECT_TRUE(eventually([] { return AgentClient::instance().connected(); }));
  EXPECT_EQ(AgentClient::instance().raft_address(), "10.0.0.1:4000");
}

TEST(AgentStart, TheCommandGetsItsArgumentsAndLeavesNoChild) {
  const std::string file =
      (std::filesystem::temp_directory_path() / ("theseus-start-" + std::to_string(random_u64()))).string();
  const int held = open("/dev/null", O_RDONLY);  // as applications hold many: not close-on-exec
  const std::string command = "sh -c 'for each in \"$@\"; do echo \"$each\"; done > " + file +
                              ".new; ls /proc/self/fd >> " + file + ".new; mv " + file + ".new " + file + "' agent";
  const auto pid = start_agent(command, "a 'job' $(with) \"all\"", "the host");
  close(held);
  ASSERT_TRUE(pid.ok());
  ASSERT_TRUE(eventually([&file] { return std::filesystem::exists(file); }));
  std::ifstream in(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  unlink(file.c_str());
  ASSERT_GE(lines.size(), 4u);
  EXPECT_EQ(lines[0], "--job");
  EXPECT_EQ(lines[1], "a 'job' $(with) \"all\"");
  EXPECT_EQ(lines[2], "--host");
  EXPECT_EQ(lines[3], "the host");
  EXPECT_LE(lines.size(), 8u) << "more than standard input, output, errors and the folder itself";
  ASSERT_TRUE(eventually([&pid] { return reap_agent_start(pid.value()); }));
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
}

TEST(AgentStart, OneProcessAtATimeMayStartIt) {
  Fd claim = claim_agent_start("job", "host");
  ASSERT_TRUE(claim.valid());
  EXPECT_FALSE(claim_agent_start("job", "host").valid());
  EXPECT_TRUE(claim_agent_start("job", "another").valid());
  claim.reset();
  EXPECT_TRUE(claim_agent_start("job", "host").valid());
}

TEST(AgentStart, NamesDependOnJobAndHost) {
  EXPECT_NE(agent_socket_name("ab", "c"), agent_socket_name("a", "bc"));
  // theseus_py.agent.wire.name_hash has the same (tests/unit/python/test_agent.py).
  EXPECT_EQ(agent_socket_name("job", "host"), "theseus-agent-" + std::to_string(getuid()) + "-9e3f6179450b8c06");
}

}  // namespace
}  // namespace theseus
