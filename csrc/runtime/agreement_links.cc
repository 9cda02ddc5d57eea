#include "runtime/agreement_links.h"

#include <map>

#include "base/env.h"
#include "base/log.h"
#include "net/frames.h"
#include "net/process_server.h"
#include "net/wire.h"
#include "runtime/worker.h"

namespace theseus {
namespace {

constexpr size_t kLargestMessage = 1 << 20;
constexpr size_t kMostQueued = 16 << 20;
constexpr size_t kMostEarly = 1024;  // messages that overtook others, of one peer
constexpr int kMostPaths = 2;

}  // namespace

// Everything but `post` on the watch thread.
struct AgreementLinks::State : std::enable_shared_from_this<AgreementLinks::State> {
  struct Path {
    std::shared_ptr<FrameConnection> connection;
    bool failed = false;
    std::vector<std::string> waiting;  // until it is connected
  };
  struct Outgoing {
    std::vector<Path> paths;
    uint64_t next = 0;
  };
  struct Incoming {
    uint64_t next = 0;
    std::map<uint64_t, Frame> early;
    std::vector<std::shared_ptr<FrameConnection>> connections;
  };

  CommId communicator;
  int rank = 0;
  std::vector<Peer> peers;
  Topology topology;
  Receive receive;
  ProcessServer* server = nullptr;
  std::map<int, Outgoing> outgoing;
  std::map<int, Incoming> incoming;
  bool closed = false;

  void accept(int from, Socket socket);
  void take(int from, Frame frame);
  void send(int to, Kind kind, std::string bytes);
  void connect(int to, size_t path);
  void connected(int to, size_t path, Socket socket);
  void close();
};

void AgreementLinks::State::accept(int from, Socket socket) {
  if (closed || from < 0 || from >= static_cast<int>(peers.size())) return;
  FrameConnection::Callbacks callbacks;
  callbacks.on_frame = [weak = weak_from_this(), from](Frame frame) {
    if (const auto state = weak.lock()) state->take(from, std::move(frame));
  };
  callbacks.on_close = [](const std::string&) {};
  incoming[from].connections.push_back(
      FrameConnection::open(server->loop(), std::move(socket), kLargestMessage, kMostQueued, std::move(callbacks)));
}

void AgreementLinks::State::take(int from, Frame frame) {
  if (closed) return;
  Incoming& peer = incoming[from];
  WireReader in(frame.payload);
  const auto sequence = in.number<uint64_t>();
  if (!in.ok() || sequence < peer.next || peer.early.size() >= kMostEarly) return;
  peer.early.try_emplace(sequence, std::move(frame));
  while (!peer.early.empty() && peer.early.begin()->first == peer.next) {
    const Frame next = std::move(peer.early.extract(peer.early.begin()).mapped());
    ++peer.next;
    receive(from, static_cast<Kind>(next.type), next.payload.substr(sizeof sequence));
  }
}

void AgreementLinks::State::send(int to, Kind kind, std::string bytes) {
  if (closed) return;
  Outgoing& peer = outgoing[to];
  const bool is_local =
      topology.host_of_rank[static_cast<size_t>(to)] == topology.host_of_rank[static_cast<size_t>(rank)];
  if (peer.paths.empty()) {
    const size_t rails =
        is_local ? 1
                 : std::min(peers[static_cast<size_t>(rank)].rails.size(), peers[static_cast<size_t>(to)].rails.size());
    peer.paths.resize(std::clamp<size_t>(rails, 1, kMostPaths));
    for (size_t path = 0; path < peer.paths.size(); ++path) connect(to, path);
  }
  WireWriter out;
  out.number(peer.next++);
  const std::string payload = out.take() + bytes;
  for (Path& path : peer.paths) {
    if (path.failed) continue;
    if (path.connection == nullptr) {
      path.waiting.push_back(std::string(1, static_cast<char>(kind)) + payload);
    } else {
      path.connection->send(static_cast<uint32_t>(kind), payload);
    }
  }
}

void AgreementLinks::State::connect(int to, size_t path) {
  const Peer& peer = peers[static_cast<size_t>(to)];
  const Peer& own = peers[static_cast<size_t>(rank)];
  const bool is_local =
      topology.host_of_rank[static_cast<size_t>(to)] == topology.host_of_rank[static_cast<size_t>(rank)];
  Hello hello;
  hello.communicator = communicator;
  hello.purpose = Purpose::Agreement;
  hello.source = rank;
  hello.destination = to;
  hello.rail = static_cast<int32_t>(path);
  std::vector<Address> remote = peer.server;
  Address local;
  if (!is_local && path < peer.rails.size() && path < own.rails.size()) {
    remote = {peer.rails[path]};
    local = own.rails[path].with_port(0);
    if (local.family() != remote.front().family()) local = {};
  }
  Worker::connector().post(
      [state = shared_from_this(), to, path, hello, remote, local, is_local, name = peer.unix_name] {
        const Deadline deadline = Deadline::after(settings::heartbeat_timeout());
        Result<Socket> socket = is_local ? ProcessServer::connect_unix(name, hello, deadline)
                                         : ProcessServer::connect(remote, hello, deadline, local);
        auto shared = std::make_shared<Socket>(socket.ok() ? std::move(*socket) : Socket());
        if (!socket.ok()) THESEUS_INFO(kLogNet, "agreements with rank %d: %s", to, socket.status().message().c_str());
        state->server->loop().post([state, to, path, shared] { state->connected(to, path, std::move(*shared)); });
      });
}

void AgreementLinks::State::connected(int to, size_t path, Socket socket) {
  if (closed) return;
  Path& own = outgoing[to].paths[path];
  if (!socket.valid()) {
    own.failed = true;
    own.waiting.clear();
    return;
  }
  FrameConnection::Callbacks callbacks;
  callbacks.on_frame = [](const Frame&) {};
  callbacks.on_close = [weak = weak_from_this(), to, path](const std::string&) {
    if (const auto state = weak.lock()) state->outgoing[to].paths[path].failed = true;
  };
  own.connection =
      FrameConnection::open(server->loop(), std::move(socket), kLargestMessage, kMostQueued, std::move(callbacks));
  for (const std::string& message : own.waiting) {
    own.connection->send(static_cast<uint32_t>(message[0]), std::string_view(message).substr(1));
  }
  own.waiting.clear();
}

// What was sent is still on its way: a peer may need it for its last agreement.
void AgreementLinks::State::close() {
  closed = true;
  for (auto& [to, peer] : outgoing) {
    for (Path& path : peer.paths) {
      if (path.connection != nullptr) path.connection->close_after_send();
    }
  }
  for (auto& [from, peer] : incoming) {
    for (const auto& connection : peer.connections) connection->close();
  }
}

Result<std::unique_ptr<AgreementLinks>> AgreementLinks::open(const CommId& communicator, int rank,
                                                             std::vector<Peer> peers, const Topology& topology,
                                                             Receive receive) {
  Result<ProcessServer*> server = ProcessServer::get();
  if (!server.ok()) return server.status();
  auto state = std::make_shared<State>();
  state->communicator = communicator;
  state->rank = rank;
  state->peers = std::move(peers);
  state->topology = topology;
  state->receive = std::move(receive);
  state->server = *server;
  (*server)->register_handler(communicator, Purpose::Agreement, rank,
                              [weak = std::weak_ptr<State>(state)](const Hello& hello, Socket socket) {
                                if (const auto state = weak.lock()) state->accept(hello.source, std::move(socket));
                              });
  return std::unique_ptr<AgreementLinks>(new AgreementLinks(std::move(state)));
}

AgreementLinks::~AgreementLinks() { close(); }

void AgreementLinks::close() {
  state_->server->unregister_handler(state_->communicator, Purpose::Agreement, state_->rank);
  state_->server->loop().run([this] { state_->close(); });
}

void AgreementLinks::send(int to, Kind kind, std::string bytes) {
  state_->server->loop().post(
      [state = state_, to, kind, bytes = std::move(bytes)]() mutable { state->send(to, kind, std::move(bytes)); });
}

}  // namespace theseus
