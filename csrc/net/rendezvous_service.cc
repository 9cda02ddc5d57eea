#include "net/rendezvous_service.h"

#include <algorithm>
#include <cstdio>
#include <mutex>

#include "base/log.h"
#include "net/rendezvous.h"
#include "net/wire.h"

namespace theseus {
namespace {

constexpr double kJoinSeconds = 10;  // from hello to a complete join request
constexpr size_t kMaxJoinBytes = 2 * kMaxRendezvousBlob;
constexpr size_t kMaxQueuedBytes = size_t{1} << 30;
constexpr size_t kMaxRemembered = 65536;
constexpr size_t kMaxDerivedSessions = 4096;

void send_error(const std::shared_ptr<FrameConnection>& connection, const Status& status) {
  connection->send(kRendezvousError,
                   WireWriter().number(static_cast<int32_t>(status.code())).text(status.message()).take());
  connection->close_after_send();
}

std::string name_of(const JoinRequest& request) {
  return "rank " + std::to_string(request.rank) + " (" + request.label + ")";
}

// The first NAME=value of two lists that differs: "THESEUS_ALGO=ring" and "THESEUS_ALGO=".
std::pair<std::string, std::string> first_difference(const std::string& left, const std::string& right) {
  size_t start = 0;
  while (true) {
    const size_t left_end = std::min(left.find(';', start), left.size());
    const size_t right_end = std::min(right.find(';', start), right.size());
    const std::string left_item = left.substr(start, left_end - start);
    const std::string right_item = right.substr(start, right_end - start);
    if (left_item != right_item || left_end == left.size()) return {left_item, right_item};
    start = left_end + 1;
  }
}

}  // namespace

std::string JoinRequest::encode() const {
  return WireWriter()
      .number(rank)
      .number(ranks)
      .number(static_cast<uint32_t>(derived))
      .number(timeout)
      .number(allowed)
      .text(label)
      .text(must_agree)
      .text(blob)
      .take();
}

Result<JoinRequest> JoinRequest::decode(std::string_view bytes) {
  WireReader reader(bytes);
  JoinRequest request;
  request.rank = reader.number<int32_t>();
  request.ranks = reader.number<int32_t>();
  request.derived = reader.number<uint32_t>() != 0;
  request.timeout = reader.number<double>();
  request.allowed = reader.number<double>();
  request.label = reader.text();
  request.must_agree = reader.text();
  request.blob = reader.text();
  const bool sane = reader.at_end() && request.ranks >= 1 && request.ranks <= kMaxRanks && request.rank >= 0 &&
                    request.rank < request.ranks && request.blob.size() <= kMaxRendezvousBlob && request.timeout >= 0;
  if (!sane) return Status::argument("malformed request to join a communicator");
  return request;
}

Result<RendezvousService*> RendezvousService::get() {
  auto server = ProcessServer::get();
  if (!server.ok()) return server.status();
  static auto* mutex = new std::mutex;
  static RendezvousService* service = nullptr;
  std::lock_guard lock(*mutex);
  if (service == nullptr) {
    service = new RendezvousService(server.value());
    server.value()->register_fallback(Purpose::Rendezvous, [self = service](const Hello& hello, Socket socket) {
      self->accept(hello, std::move(socket));
    });
  }
  return service;
}

void RendezvousService::expect(const Id128& nonce) {
  server_->loop().run([this, nonce] {
    sessions_[nonce] = std::make_shared<Session>();
    expected_.push_back(nonce);
    if (expected_.size() <= kMaxRemembered) return;
    if (const auto oldest = sessions_.find(expected_.front()); oldest != sessions_.end()) {
      if (oldest->second->joiners.empty()) sessions_.erase(oldest);
    }
    expected_.pop_front();
  });
}

void RendezvousService::accept(const Hello& hello, Socket socket) {
  EventLoop& loop = server_->loop();
  // The connection's first frame must be a complete join, soon; until then a timer stands by to close it.
  const auto timer = std::make_shared<EventLoop::TimerId>(0);
  const auto connection = std::make_shared<std::weak_ptr<FrameConnection>>();
  FrameConnection::Callbacks callbacks;
  const Id128 nonce = hello.communicator;
  callbacks.on_frame = [this, &loop, nonce, timer, connection](Frame frame) {
    const auto open = connection->lock();
    if (open == nullptr || *timer == 0) return;  // only the first frame counts
    loop.remove_timer(*timer);
    *timer = 0;
    auto request = JoinRequest::decode(frame.payload);
    if (frame.type != kRendezvousJoin || !request.ok()) return open->close();
    join(nonce, open, std::move(request).value());
  };
  // Before the join nobody knows of this connection; afterwards the table below has it.
  callbacks.on_close = [this, &loop, nonce, timer, connection](const std::string&) {
    if (*timer != 0) loop.remove_timer(*timer);
    const auto found = sessions_.find(nonce);
    if (found == sessions_.end()) return;
    const SessionPointer session = found->second;
    for (const auto& [rank, joiner] : session->joiners) {
      if (!joiner.connection->is_open()) return left(nonce, session, rank);
    }
  };
  const auto open =
      FrameConnection::open(loop, std::move(socket), kMaxJoinBytes, kMaxQueuedBytes, std::move(callbacks));
  *connection = open;
  *timer = loop.add_timer(kJoinSeconds, [&loop, timer, connection] {
    loop.remove_timer(*timer);
    *timer = 0;
    if (const auto silent = connection->lock()) silent->close();
  });
}

RendezvousService::SessionPointer RendezvousService::find_session(const Id128& nonce, bool derived) {
  if (const auto found = sessions_.find(nonce); found != sessions_.end()) return found->second;
  if (!derived || derived_sessions_ >= kMaxDerivedSessions) return nullptr;
  auto session = std::make_shared<Session>();
  session->derived = true;
  ++derived_sessions_;
  sessions_[nonce] = session;
  return session;
}

// What is wrong with this joiner beside those who came before it. Every rank gets to know: nobody can tell who is
// right.
Status RendezvousService::check_join(const Session& session, const JoinRequest& request) {
  if (session.joiners.empty()) return {};
  const JoinRequest& first = session.joiners.begin()->second.request;
  if (request.ranks != first.ranks) {
    return Status::usage("the ranks disagree about how many there are: " + name_of(first) + " says " +
                         std::to_string(first.ranks) + ", " + name_of(request) + " says " +
                         std::to_string(request.ranks));
  }
  if (const auto other = session.joiners.find(request.rank); other != session.joiners.end()) {
    return Status::usage("rank " + std::to_string(request.rank) + " joined twice: from " + other->second.request.label +
                         " and from " + request.label + "; each rank needs its own number");
  }
  if (request.must_agree != first.must_agree) {
    const auto [theirs, ours] = first_difference(first.must_agree, request.must_agree);
    return Status::usage("settings differ that have to be equal on all ranks: " + name_of(first) + " has " + theirs +
                         ", " + name_of(request) + " has " + ours);
  }
  return {};
}

void RendezvousService::join(const Id128& nonce, const std::shared_ptr<FrameConnection>& connection,
                             JoinRequest request) {
  const SessionPointer session = find_session(nonce, request.derived);
  if (session == nullptr) {
    return send_error(connection, Status::usage("the process that answers for this unique id does not know it: it is "
                                                "stale, of another job; get a new one with ncclGetUniqueId"));
  }
  if (session->state == State::Done) {
    return send_error(connection,
                      Status::usage("this unique id was used for a communicator before; each needs its own, "
                                    "from ncclGetUniqueId"));
  }
  if (session->state == State::Failed) {
    return send_error(connection, Status(session->failure.code(),
                                         "the communicator of this unique id could not be "
                                         "built: " +
                                             session->failure.message()));
  }
  if (const Status wrong = check_join(*session, request); !wrong.ok()) {
    send_error(connection, wrong);
    return fail(nonce, session, wrong);
  }
  THESEUS_INFO(kLogBootstrap, "%s of %d joined", name_of(request).c_str(), request.ranks);
  const double timeout = request.timeout;
  const double allowed = request.allowed;
  const auto ranks = static_cast<size_t>(request.ranks);
  const int rank = request.rank;
  session->joiners.emplace(rank, Joiner{connection, std::move(request)});
  if (session->joiners.size() == ranks) return complete(nonce, session);
  limit_time(nonce, session, timeout, allowed);
}

// The most impatient joiner's timeout counts.
void RendezvousService::limit_time(const Id128& nonce, const SessionPointer& session, double timeout, double allowed) {
  const double bounded = std::min(timeout, 1e9);
  const uint64_t deadline = now_ns() + static_cast<uint64_t>(bounded * 1e9);
  if (deadline >= session->deadline_ns) return;
  session->deadline_ns = deadline;
  EventLoop& loop = server_->loop();
  if (session->timer != 0) loop.remove_timer(session->timer);
  session->timer = loop.add_timer(bounded, [this, nonce, session, allowed] {
    const int ranks = session->joiners.begin()->second.request.ranks;
    std::string missing;
    int count = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      if (session->joiners.count(rank) != 0) continue;
      if (++count <= 16) missing += (count == 1 ? "" : ", ") + std::to_string(rank);
    }
    if (count > 16) missing += " and " + std::to_string(count - 16) + " more";
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.3g", allowed);
    fail(nonce, session,
         Status::timeout((count == 1 ? "rank " : "ranks ") + missing + " of " + std::to_string(ranks) +
                         " did not join within " + seconds + " s (THESEUS_INIT_TIMEOUT)"));
  });
}

void RendezvousService::complete(const Id128& nonce, const SessionPointer& session) {
  const CommId communicator = random_id();
  WireWriter table;
  table.number(communicator.high).number(communicator.low).number(static_cast<uint32_t>(session->joiners.size()));
  for (const auto& [rank, joiner] : session->joiners) table.text(joiner.request.blob);
  const std::string bytes = table.take();
  const auto joiners = std::move(session->joiners);
  end(nonce, session, State::Done);
  for (const auto& [rank, joiner] : joiners) {
    joiner.connection->send(kRendezvousTable, bytes);
    joiner.connection->close_after_send();
  }
}

void RendezvousService::fail(const Id128& nonce, const SessionPointer& session, const Status& failure) {
  THESEUS_WARN(failure.message());
  session->failure = failure;
  const auto joiners = std::move(session->joiners);
  end(nonce, session, State::Failed);
  for (const auto& [rank, joiner] : joiners) send_error(joiner.connection, failure);
}

void RendezvousService::left(const Id128& nonce, const SessionPointer& session, int rank) {
  const std::string name = name_of(session->joiners.at(rank).request);
  session->joiners.erase(rank);
  fail(nonce, session, Status::remote(name + " ended, or gave up, while the communicator was being built"));
}

void RendezvousService::end(const Id128& nonce, const SessionPointer& session, State state) {
  session->state = state;
  session->joiners.clear();
  if (session->timer != 0) server_->loop().remove_timer(session->timer);
  session->timer = 0;
  if (!session->derived) return;
  sessions_.erase(nonce);  // may be used again
  --derived_sessions_;
}

}  // namespace theseus
