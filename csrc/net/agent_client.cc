#include "net/agent_client.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>

#include "base/clock.h"
#include "base/env.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/random.h"
#include "net/agent_frames.h"
#include "net/agent_start.h"
#include "net/process_server.h"
#include "net/wire.h"

namespace theseus {
namespace {

constexpr uint32_t kVersion = 2;
enum Kind : uint32_t { kHello = 1, kWelcome = 2, kMembers = 3, kAppend = 4, kResult = 5, kReport = 8 };
constexpr uint32_t kRankRole = 0;

constexpr double kTickSeconds = 0.1;
constexpr double kRestartSeconds = 2;  // after an agent died
constexpr double kClaimSeconds = 3;    // an agent that was started listens by then, as a rule
constexpr double kShortestPause = 5;   // between two starts of this process; doubles while they come to nothing
constexpr double kLongestPause = 60;
constexpr double kAnswerSeconds = 10;  // a little longer than an agent takes to find out that it has no quorum
constexpr double kNobodySeconds = 5;

uint64_t after(double seconds) { return now_ns() + static_cast<uint64_t>(seconds * 1e9); }
double jitter(double seconds) { return seconds * static_cast<double>(random_u64() % 1000) / 1000; }

}  // namespace

struct AgentClient::Impl {
  struct Pending {
    std::string payload;
    Fd body;
    std::function<void(Status)> done;
    uint64_t give_up_ns = 0;  // without an answer
    uint64_t nobody_ns = 0;   // without an agent
  };

  // Read by other threads, under the mutex.
  mutable std::mutex mutex;
  bool started = false;
  bool connected = false;
  uint64_t log_id = 0;
  std::string address;
  std::string folder;
  Fd log;

  // The watch thread's own.
  EventLoop* loop = nullptr;
  std::string job, host, command;
  Fd flow_page;
  const uint64_t nonce = random_u64();  // tells this process's tickets from all others
  std::optional<AgentSocket> socket;
  bool waits_to_write = false;
  std::vector<std::function<void()>> on_log;
  std::map<uint64_t, Pending> pending;  // by ticket
  uint64_t next_ticket = 1;
  std::string members;  // the payload; empty: not told yet
  uint64_t start_after_ns = 0;
  double pause = kShortestPause;
  Fd claim;
  uint64_t claim_ends_ns = 0;
  int starting_pid = -1;
  uint64_t greet_by_ns = 0;  // an agent that accepts and says nothing is stuck

  void begin();
  void tick();
  void try_connect();
  void start_one();
  void ready(uint32_t events);
  void flush();
  void lose(const std::string& why);
  void take(AgentFrame frame);
  void welcome(AgentFrame frame);
  void result(const AgentFrame& frame);
  void send(uint32_t kind, const std::string& payload, int descriptor = -1);
  void expire();
};

void AgentClient::Impl::begin() {
  start_after_ns = after(jitter(kTickSeconds));
  loop->add_timer(kTickSeconds, [this] { tick(); });
  tick();
}

void AgentClient::Impl::tick() {
  const uint64_t now = now_ns();
  if (starting_pid > 0 && reap_agent_start(starting_pid)) starting_pid = -1;
  if (claim.valid() && now >= claim_ends_ns) claim.reset();
  if (!socket.has_value()) {
    try_connect();
  } else if (greet_by_ns != 0 && now >= greet_by_ns) {
    lose("says nothing");
  }
  expire();
}

void AgentClient::Impl::try_connect() {
  auto opened = AgentSocket::connect(agent_socket_name(job, host));
  if (!opened.ok()) return start_one();
  socket = std::move(opened).value();
  greet_by_ns = after(kAnswerSeconds);
  waits_to_write = false;
  loop->watch(socket->fd(), EPOLLIN, [this](uint32_t events) { ready(events); });
  WireWriter hello;
  hello.number(kVersion).number(static_cast<uint32_t>(getpid())).number(kRankRole).number(nonce).text(job).text(host);
  send(kHello, hello.take(), flow_page.get());
  if (!members.empty()) send(kMembers, members);
  for (const auto& [ticket, each] : pending) send(kAppend, each.payload, each.body.get());
}

void AgentClient::Impl::start_one() {
  const uint64_t now = now_ns();
  if (command.empty() || starting_pid > 0 || now < start_after_ns) return;
  claim = claim_agent_start(job, host);
  if (!claim.valid()) return;  // another process of this host does it
  claim_ends_ns = after(kClaimSeconds);
  start_after_ns = after(pause + jitter(pause));
  pause = std::min(2 * pause, kLongestPause);
  const auto pid = start_agent(command, job, host);
  if (pid.ok()) {
    starting_pid = pid.value();
    THESEUS_INFO(kLogInit, "started the agent of job %s on host %s", job.c_str(), host.c_str());
  } else {
    THESEUS_WARN(pid.status().message());
  }
}

void AgentClient::Impl::send(uint32_t kind, const std::string& payload, int descriptor) {
  if (!socket.has_value()) return;
  if (const Status status = socket->send(kind, payload, descriptor); !status.ok()) return lose(status.message());
  flush();
}

void AgentClient::Impl::flush() {
  if (const Status status = socket->flush(); !status.ok()) return lose(status.message());
  if (socket->wants_to_write() == waits_to_write) return;
  waits_to_write = !waits_to_write;
  loop->change(socket->fd(), waits_to_write ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void AgentClient::Impl::ready(uint32_t events) {
  if (!socket.has_value()) return;
  if ((events & EPOLLOUT) != 0) flush();
  if (!socket.has_value() || (events & ~static_cast<uint32_t>(EPOLLOUT)) == 0) return;
  std::vector<AgentFrame> frames;
  const Status status = socket->receive(frames);
  for (AgentFrame& frame : frames) {
    if (socket.has_value()) take(std::move(frame));
  }
  if (!status.ok() && socket.has_value()) lose(status.message());
}

// What is pending stays so, for the next agent.
void AgentClient::Impl::lose(const std::string& why) {
  THESEUS_INFO(kLogInit, "lost the agent of job %s: %s", job.c_str(), why.c_str());
  loop->unwatch(socket->fd());
  socket.reset();
  greet_by_ns = 0;
  start_after_ns = std::max(start_after_ns, after(kRestartSeconds + jitter(0.5)));
  for (auto& [ticket, each] : pending) each.nobody_ns = after(kNobodySeconds);
  const std::lock_guard lock(mutex);
  connected = false;
}

void AgentClient::Impl::take(AgentFrame frame) {
  if (frame.kind == kWelcome) return welcome(std::move(frame));
  if (frame.kind == kResult) return result(frame);
  lose("it sent a message of an unknown kind");
}

void AgentClient::Impl::welcome(AgentFrame frame) {
  WireReader in(frame.payload);
  const auto version = in.number<uint32_t>();
  const auto id = in.number<uint64_t>();
  std::string reached = in.text();
  const std::string its_job = in.text();
  const std::string its_host = in.text();
  std::string bodies = in.text();
  if (!in.at_end() || version != kVersion) return lose("it speaks another version");
  if (its_job != job || its_host != host) return lose("it is another job's");
  if ((id != 0) != frame.descriptor.valid()) return lose("its log did not come along");
  greet_by_ns = 0;
  claim.reset();
  pause = kShortestPause;
  bool another = false;
  {
    const std::lock_guard lock(mutex);
    connected = true;
    another = id != log_id && id != 0;
    address = std::move(reached);
    folder = std::move(bodies);
    if (id != 0) {
      log_id = id;
      log = std::move(frame.descriptor);
    }
  }
  if (!another) return;
  const auto callbacks = on_log;  // one may register another
  for (const auto& callback : callbacks) callback();
}

void AgentClient::Impl::result(const AgentFrame& frame) {
  WireReader in(frame.payload);
  const auto ticket = in.number<uint64_t>();
  const auto code = in.number<uint32_t>();
  const std::string sentence = in.text();
  if (!in.at_end() || code > static_cast<uint32_t>(Code::Timeout)) return lose("it sent a result that cannot be");
  const auto found = pending.find(ticket);
  if (found == pending.end()) return;
  const auto done = std::move(found->second.done);
  pending.erase(found);
  done(code == 0 ? Status() : Status(static_cast<Code>(code), sentence));
}

void AgentClient::Impl::expire() {
  const uint64_t now = now_ns();
  std::vector<std::pair<std::function<void(Status)>, Status>> late;
  for (auto each = pending.begin(); each != pending.end();) {
    const bool nobody = !socket.has_value() && now >= each->second.nobody_ns;
    if (!nobody && now < each->second.give_up_ns) {
      ++each;
      continue;
    }
    late.emplace_back(std::move(each->second.done),
                      nobody ? Status::system("job " + job + " has no agent on host " + host +
                                              ": set THESEUS_AGENT, or start one with 'theseus agent'")
                             : Status::timeout("the agent of job " + job +
                                               " did not answer in time; the record may yet be appended"));
    each = pending.erase(each);
  }
  for (auto& [done, status] : late) done(std::move(status));
}

AgentClient::AgentClient() : impl_(new Impl) {}

AgentClient& AgentClient::instance() {
  static AgentClient& client = *new AgentClient;
  return client;
}

void AgentClient::start(const std::string& job, const std::string& host, int flow_page_fd) {
  if (is_forked_child()) return;
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->started) return;
    const auto server = ProcessServer::get();
    if (!server.ok()) {
      THESEUS_WARN(server.status().message());
      return;
    }
    impl_->started = true;
    impl_->loop = &server.value()->loop();
  }
  const int page = flow_page_fd < 0 ? -1 : fcntl(flow_page_fd, F_DUPFD_CLOEXEC, 0);
  impl_->loop->post([impl = impl_, job, host, page] {
    impl->job = job;
    impl->host = host;
    impl->command = settings::agent() == "off" ? "" : settings::agent();
    impl->flow_page = Fd(page);
    impl->begin();
  });
}

bool AgentClient::connected() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->connected;
}

uint64_t AgentClient::log_id() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->log_id;
}

std::string AgentClient::raft_address() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->address;
}

std::string AgentClient::body_folder() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->folder;
}

std::unique_ptr<SharedLogReader> AgentClient::open_log() const {
  int descriptor = -1;
  {
    const std::lock_guard lock(impl_->mutex);
    if (is_forked_child() || !impl_->log.valid()) return nullptr;
    descriptor = fcntl(impl_->log.get(), F_DUPFD_CLOEXEC, 0);
  }
  auto reader = descriptor < 0 ? Result<std::unique_ptr<SharedLogReader>>(Status::system("no descriptors"))
                               : SharedLogReader::from_fd(Fd(descriptor));
  return reader.ok() ? std::move(reader).value() : nullptr;
}

void AgentClient::on_log(std::function<void()> callback) {
  const auto server = ProcessServer::get();
  if (!server.ok()) return;
  server.value()->loop().post([impl = impl_, callback = std::move(callback)] {
    impl->on_log.push_back(callback);
    uint64_t id;
    {
      const std::lock_guard lock(impl->mutex);
      id = impl->log_id;
    }
    if (id != 0) callback();
  });
}

void AgentClient::append(std::string record, Fd body, std::function<void(Status)> done) {
  const auto server = ProcessServer::get();
  if (!server.ok()) return done(server.status());
  auto shared_body = std::make_shared<Fd>(std::move(body));  // std::function copies
  server.value()->loop().post([impl = impl_, record = std::move(record), shared_body, done = std::move(done)] {
    const uint64_t ticket = impl->next_ticket++;
    Impl::Pending each;
    each.payload = WireWriter().number(ticket).text(record).take();
    each.body = std::move(*shared_body);
    each.done = done;
    each.give_up_ns = after(kAnswerSeconds);
    each.nobody_ns = after(kNobodySeconds);
    const auto& placed = impl->pending.emplace(ticket, std::move(each)).first->second;
    impl->send(kAppend, placed.payload, placed.body.get());
  });
}

void AgentClient::set_members(const std::string& secret, std::vector<std::pair<std::string, std::string>> hosts) {
  const auto server = ProcessServer::get();
  if (!server.ok()) return;
  WireWriter out;
  out.text(secret).number(static_cast<uint32_t>(hosts.size()));
  for (const auto& [host, address] : hosts) out.text(host).text(address);
  server.value()->loop().post([impl = impl_, payload = out.take()] {
    impl->members = payload;
    impl->send(kMembers, payload);
  });
}

void AgentClient::report(std::string payload) {
  const auto server = ProcessServer::get();
  if (!server.ok()) return;
  server.value()->loop().post([impl = impl_, payload = std::move(payload)] {
    const bool reads = impl->socket.has_value() && impl->greet_by_ns == 0 && !impl->socket->wants_to_write();
    if (reads) impl->send(kReport, payload);
  });
}

}  // namespace theseus
