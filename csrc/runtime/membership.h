// How the agents of a job's hosts find each other: the first rank of each host starts its agent and tells rank 0 where
// that listens; rank 0 tells all of them the whole list. It travels with the agreements' messages, long after the
// communicator is ready.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/ids.h"
#include "net/event_loop.h"
#include "runtime/peer.h"
#include "schedule/topology.h"

namespace theseus {

class Membership : public std::enable_shared_from_this<Membership> {
 public:
  using Send = std::function<void(int to, std::string bytes)>;

  // `send` may be called until stop(). The communicator's id is the secret that its hosts' agents share.
  static std::shared_ptr<Membership> start(const CommId& communicator, int rank, const std::vector<Peer>& peers,
                                           const Topology& topology, Send send);
  void stop();
  // On the watch thread.
  void receive(int from, const std::string& bytes);

 private:
  Membership() = default;
  void tick();
  void add(const std::string& host, const std::string& address);
  void take_list(const std::string& bytes);

  EventLoop* loop_ = nullptr;
  EventLoop::TimerId timer_ = 0;
  CommId communicator_;
  int rank_ = 0;
  std::string job_;
  std::vector<std::string> hosts_;  // identity, by rank
  std::vector<int> leaders_;        // first rank of each host
  std::mutex mutex_;                // guards send_
  Send send_;
  // The watch thread alone touches what follows.
  int ticks_ = 0;
  bool told_ = false;                          // rank 0 knows of our agent
  std::map<std::string, std::string> agents_;  // rank 0: by host
};

}  // namespace theseus
