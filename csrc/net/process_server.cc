#include "net/process_server.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "base/log.h"
#include "base/random.h"
#include "net/interfaces.h"

namespace theseus {
namespace {

constexpr double kGreetingSeconds = 10;
constexpr size_t kMaxGreetings = 512;
constexpr double kParkedSeconds = 300;
constexpr size_t kMaxParked = 4096;

uint64_t seconds_from_now(double seconds) { return now_ns() + static_cast<uint64_t>(seconds * 1e9); }

Status say(const Socket& socket, const Hello& hello, const Deadline& deadline) {
  return socket.send_all(&hello, sizeof hello, deadline);
}

}  // namespace

ProcessServer::Key ProcessServer::key_of(const CommId& communicator, Purpose purpose, int destination) {
  return {communicator.high, communicator.low, static_cast<uint32_t>(purpose), destination};
}

Result<ProcessServer*> ProcessServer::get() {
  THESEUS_TRY(check_not_forked());
  static auto* mutex = new std::mutex;
  static ProcessServer* server = nullptr;
  std::lock_guard lock(*mutex);
  if (server == nullptr) {
    auto created = create();
    if (!created.ok()) return created;
    server = created.value();
  }
  return server;
}

Result<ProcessServer*> ProcessServer::create() {
  std::unique_ptr<ProcessServer> server(new ProcessServer);
  // A kernel without IPv6 refuses the socket itself, one with IPv6 switched off the binding.
  auto listener = Socket::listen(Address::any(AF_INET6, 0));
  server->dual_stack_ = listener.ok();
  if (!listener.ok()) listener = Socket::listen(Address::any(AF_INET, 0));
  if (!listener.ok()) return listener.status();
  server->port_ = listener->local_address().port();

  server->unix_name_ = "theseus-" + std::to_string(getpid()) + "-" + random_id().to_string();
  auto unix_listener = Socket::listen_unix(server->unix_name_);
  if (!unix_listener.ok()) return unix_listener.status();

  auto loop = EventLoop::start();
  if (!loop.ok()) return loop.status();
  server->loop_ = loop.value();
  ProcessServer* self = server.release();  // for the life of the process, like the loop
  self->serve(std::make_shared<Socket>(std::move(listener).value()), false);
  self->serve(std::make_shared<Socket>(std::move(unix_listener).value()), true);
  self->loop_->add_timer(0.5, [self] { self->expire(); });
  THESEUS_INFO(kLogBootstrap, "process server at port %d, Unix socket @%s", self->port_, self->unix_name_.c_str());
  return self;
}

void ProcessServer::serve(std::shared_ptr<Socket> listener, bool is_unix) {
  loop_->watch(listener->fd(), EPOLLIN, [this, listener, is_unix](uint32_t) { accept_all(listener, is_unix); });
}

void ProcessServer::accept_all(const std::shared_ptr<Socket>& listener, bool is_unix) {
  // Bounded, so that a flood of connections does not keep heartbeats waiting.
  for (int i = 0; i < 64; ++i) {
    auto accepted = listener->accept(Deadline::after(0));
    if (!accepted.ok()) {
      if (accepted.status().code() != Code::Timeout) {
        THESEUS_WARN(accepted.status().message());
        pause(listener, is_unix);
      }
      return;
    }
    if (is_unix && !accepted->peer_is_same_user()) continue;
    greet(std::move(accepted).value());
  }
}

// Out of descriptors: the waiting connection stays readable, and the loop would spin on it.
void ProcessServer::pause(const std::shared_ptr<Socket>& listener, bool is_unix) {
  // Who has said nothing for a second is most likely a stranger, and holds a descriptor that a rank could use.
  const uint64_t stale = seconds_from_now(kGreetingSeconds - 1);
  while (!greetings_.empty() && greetings_.front()->deadline_ns <= stale)
    drop(greetings_.front(), "descriptors ran out");
  loop_->unwatch(listener->fd());
  auto timer = std::make_shared<EventLoop::TimerId>(0);
  *timer = loop_->add_timer(0.1, [this, listener, is_unix, timer] {
    loop_->remove_timer(*timer);
    serve(listener, is_unix);
  });
}

void ProcessServer::greet(Socket socket) {
  if (greetings_.size() >= kMaxGreetings) drop(greetings_.front(), "too many connections that say nothing");
  auto greeting = std::make_shared<Greeting>();
  greeting->socket = std::move(socket);
  greeting->deadline_ns = seconds_from_now(kGreetingSeconds);
  greetings_.push_back(greeting);
  loop_->watch(greeting->socket.fd(), EPOLLIN, [this, greeting](uint32_t) { read_hello(greeting); });
}

void ProcessServer::read_hello(const std::shared_ptr<Greeting>& greeting) {
  const ssize_t got =
      recv(greeting->socket.fd(), greeting->bytes + greeting->received, sizeof(Hello) - greeting->received, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return drop(greeting, "it closed before its hello was complete");
  greeting->received += static_cast<size_t>(got);

  Hello hello;
  std::memcpy(static_cast<void*>(&hello), greeting->bytes, sizeof hello);
  if (greeting->received >= sizeof hello.magic && hello.magic != Hello::kMagic) return drop(greeting, "wrong magic");
  if (greeting->received < sizeof hello) return;
  if (hello.version != Hello::kVersion) return drop(greeting, "another version of the protocol");

  loop_->unwatch(greeting->socket.fd());
  greetings_.remove(greeting);
  route(hello, std::move(greeting->socket));
}

void ProcessServer::drop(const std::shared_ptr<Greeting>& greeting, const char* why) {
  THESEUS_INFO(kLogBootstrap, "dropped a connection from %s: %s", greeting->socket.remote_address().to_string().c_str(),
               why);
  const auto keep = greeting;  // the argument may live in greetings_
  loop_->unwatch(keep->socket.fd());
  greetings_.remove(keep);
  keep->socket.close();
}

void ProcessServer::route(const Hello& hello, Socket socket) {
  const Key key = key_of(hello.communicator, hello.purpose, hello.destination);
  if (const auto found = handlers_.find(key); found != handlers_.end()) {
    const auto handler = found->second;  // may unregister itself
    return (*handler)(hello, std::move(socket));
  }
  if (const auto found = fallbacks_.find(static_cast<uint32_t>(hello.purpose)); found != fallbacks_.end()) {
    return (*found->second)(hello, std::move(socket));
  }
  if (parked_.size() >= kMaxParked) return;
  parked_.emplace(key, Parked{hello, std::move(socket), seconds_from_now(kParkedSeconds)});
}

void ProcessServer::expire() {
  const uint64_t now = now_ns();
  while (!greetings_.empty() && greetings_.front()->deadline_ns <= now) drop(greetings_.front(), "no hello in time");
  std::erase_if(parked_, [now](const auto& entry) { return entry.second.deadline_ns <= now; });
}

void ProcessServer::register_handler(const CommId& communicator, Purpose purpose, int destination, Handler handler) {
  const Key key = key_of(communicator, purpose, destination);
  auto shared = std::make_shared<Handler>(std::move(handler));
  loop_->run([this, key, shared] {
    handlers_[key] = shared;
    std::vector<Parked> waiting;
    const auto [first, last] = parked_.equal_range(key);
    for (auto entry = first; entry != last; ++entry) waiting.push_back(std::move(entry->second));
    parked_.erase(first, last);
    for (Parked& parked : waiting) (*shared)(parked.hello, std::move(parked.socket));
  });
}

void ProcessServer::unregister_handler(const CommId& communicator, Purpose purpose, int destination) {
  const Key key = key_of(communicator, purpose, destination);
  const auto forget = [this, key] {
    handlers_.erase(key);
    parked_.erase(key);
  };
  // On the watch thread at once: a registration that follows there must not be undone.
  loop_->on_thread() ? forget() : loop_->post(forget);
}

void ProcessServer::register_fallback(Purpose purpose, Handler handler) {
  auto shared = std::make_shared<Handler>(std::move(handler));
  loop_->run([this, purpose, shared] {
    fallbacks_[static_cast<uint32_t>(purpose)] = shared;
    std::vector<Parked> waiting;
    for (auto entry = parked_.begin(); entry != parked_.end();) {
      const bool wanted = entry->second.hello.purpose == purpose;
      if (wanted) waiting.push_back(std::move(entry->second));
      entry = wanted ? parked_.erase(entry) : std::next(entry);
    }
    for (Parked& parked : waiting) (*shared)(parked.hello, std::move(parked.socket));
  });
}

Result<std::vector<Address>> ProcessServer::addresses() const {
  auto addresses = control_addresses();
  if (!addresses.ok()) return addresses;
  std::vector<Address> reachable;
  for (const Address& address : addresses.value()) {
    if (address.family() == AF_INET6 && !dual_stack_) continue;
    reachable.push_back(address.with_port(port_));
  }
  if (reachable.empty()) {
    return Status::system(
        "the network interface chosen has IPv6 addresses only, but this kernel offers no IPv6 socket");
  }
  return reachable;
}

Status ProcessServer::listen_also(const Address& address) {
  Status outcome;
  loop_->run([this, &address, &outcome] {
    if (extra_listeners_.count(address.to_string()) != 0) return;
    auto listener = Socket::listen(address);
    if (!listener.ok()) {
      outcome = listener.status();
      return;
    }
    auto shared = std::make_shared<Socket>(std::move(listener).value());
    extra_listeners_[address.to_string()] = shared;
    serve(shared, false);
  });
  return outcome;
}

Result<Socket> ProcessServer::connect(const std::vector<Address>& to, const Hello& hello, const Deadline& deadline,
                                      const Address& source) {
  THESEUS_TRY(check_not_forked());
  if (source.valid()) {
    for (const Address& address : to) {
      if (address.family() != source.family()) continue;
      auto socket = Socket::connect(address, deadline, source);
      if (socket.ok()) THESEUS_TRY(say(socket.value(), hello, deadline));
      return socket;
    }
    return Status::system("no address of the peer is of the same family as " + source.ip_string() + " here");
  }
  auto socket = Socket::connect_any(to, deadline);
  if (!socket.ok()) return socket;
  THESEUS_TRY(say(socket.value(), hello, deadline));
  return socket;
}

Result<Socket> ProcessServer::connect_unix(const std::string& name, const Hello& hello, const Deadline& deadline) {
  THESEUS_TRY(check_not_forked());
  auto socket = Socket::connect_unix(name, deadline);
  if (!socket.ok()) return socket;
  THESEUS_TRY(say(socket.value(), hello, deadline));
  return socket;
}

}  // namespace theseus
