// The serving side of the rendezvous (net/rendezvous.h): a state machine on the watch thread.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/ids.h"
#include "base/result.h"
#include "net/event_loop.h"
#include "net/frames.h"
#include "net/process_server.h"

namespace theseus {

enum RendezvousFrame : uint32_t { kRendezvousJoin = 1, kRendezvousTable = 2, kRendezvousError = 3 };

// What a joiner sends.
struct JoinRequest {
  int32_t rank = -1;
  int32_t ranks = 0;
  bool derived = false;  // the id needs no registration, and may be used again
  double timeout = 0;    // seconds left
  double allowed = 0;    // seconds that the caller gave the whole call, for messages
  std::string label;     // "host h, pid p", for messages
  std::string must_agree;
  std::string blob;

  std::string encode() const;
  static Result<JoinRequest> decode(std::string_view bytes);
};

class RendezvousService {
 public:
  // The service of this process, started at first use.
  static Result<RendezvousService*> get();

  // From now on ranks may join under `nonce`, once.
  void expect(const Id128& nonce);

 private:
  struct Joiner {
    std::shared_ptr<FrameConnection> connection;
    JoinRequest request;
  };
  enum class State { Waiting, Done, Failed };
  struct Session {
    State state = State::Waiting;
    bool derived = false;
    Status failure;
    std::map<int, Joiner> joiners;
    EventLoop::TimerId timer = 0;
    uint64_t deadline_ns = UINT64_MAX;
  };
  using SessionPointer = std::shared_ptr<Session>;

  explicit RendezvousService(ProcessServer* server) : server_(server) {}
  void accept(const Hello& hello, Socket socket);
  void join(const Id128& nonce, const std::shared_ptr<FrameConnection>& connection, JoinRequest request);
  SessionPointer find_session(const Id128& nonce, bool derived);
  static Status check_join(const Session& session, const JoinRequest& request);
  void limit_time(const Id128& nonce, const SessionPointer& session, double timeout, double allowed);
  void complete(const Id128& nonce, const SessionPointer& session);
  void fail(const Id128& nonce, const SessionPointer& session, const Status& failure);
  void left(const Id128& nonce, const SessionPointer& session, int rank);
  void end(const Id128& nonce, const SessionPointer& session, State state);

  ProcessServer* server_;
  // The watch thread alone touches what follows.
  std::unordered_map<Id128, SessionPointer> sessions_;
  std::list<Id128> expected_;  // registered ids, oldest first: the memory of used ids is bounded
  size_t derived_sessions_ = 0;
};

}  // namespace theseus
