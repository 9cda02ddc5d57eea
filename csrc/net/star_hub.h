// The hub of a control star (net/star.h): lives in rank 0's process, on the watch thread alone, until every rank has
// left.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "net/frames.h"
#include "net/process_server.h"
#include "net/star.h"

namespace theseus {

enum StarFrame : uint32_t {
  kStarIntroduce = 1,  // leaf: {label}
  kStarWelcome,        // hub: {label of rank 0}
  kStarHeartbeat,      // leaf: {request, signature, description}; hub: {rank, request, signature} of the slowest
  kStarGather,         // leaf: {sequence, blob}
  kStarTable,          // hub: {sequence, blobs...}
  kStarGatherFailed,   // hub: {sequence, code, message}
  kStarFail,           // leaf: {-1, code, message}; hub: {dead rank or -1, code, message}
  kStarGoodbye,        // leaf: {}; hub: {rank}
};

// "host h, pid p".
std::string process_label();

// Counts the time during which the watch thread could have heard something: a pause of the whole process, or machine,
// makes one late tick, which counts for no more than two.
class SilenceClock {
 public:
  explicit SilenceClock(double period) : period_(period) {}
  // Seconds since the last call, at most two periods.
  double tick();

 private:
  double period_;
  uint64_t last_ns_ = now_ns();
};
// Signs of life go out this often: 1 Hz, or faster where the limit is short.
double heartbeat_period(double timeout);

class StarHub : public std::enable_shared_from_this<StarHub> {
 public:
  StarHub(ProcessServer* server, const CommId& communicator, int ranks);
  // Registers with the process server, which keeps it until the end.
  void open();
  // Takes a rank's connection, on the watch thread.
  void accept(int rank, Socket socket);
  // A rank leaves in good order, on the watch thread: the others are told, or it has left before.
  void goodbye(int rank);

 private:
  enum class State { Absent, Present, Left, Dead };
  struct Member {
    State state = State::Absent;
    std::shared_ptr<FrameConnection> connection;
    std::string label;
    double silent = 0;  // seconds
    Progress progress;
    std::string waits_in;  // what it has waited in for long; empty: it does not
  };
  struct Gather {
    std::vector<std::optional<std::string>> blobs;
    int count = 0;
  };

  void on_frame(int rank, const Frame& frame);
  void compare_waiting(int rank);
  void introduce(int rank, const std::string& label);
  void contribute(int rank, uint64_t sequence, std::string blob);
  void fail_gather(uint64_t sequence, const Status& failure);
  void review_gathers();
  void dead(int rank, const std::string& what);
  void failed(int source, int dead_rank, const Status& failure);
  void broadcast(uint32_t type, const std::string& payload, int except);
  void tick();
  void end_if_empty();
  std::string name_of(int rank) const;
  std::string slowest() const;

  ProcessServer* server_;
  CommId communicator_;
  std::vector<Member> members_;
  std::map<uint64_t, Gather> gathers_;
  std::vector<std::string> failures_;  // encoded kStarFail frames, for those who come later
  double timeout_;
  SilenceClock clock_;
  EventLoop::TimerId timer_ = 0;
  bool ended_ = false;
  bool reported_mismatch_ = false;
};

}  // namespace theseus
