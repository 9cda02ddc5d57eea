// Small messages between the ranks of a communicator, for agreements: over the rails that data uses, so that a broken
// control network does no harm, and over two of them where there are two.
//
// A message has one number a receiver; copies that come twice are dropped, and messages are delivered in order. The
// watch thread does it all, so that a rank answers while its application computes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "runtime/peer.h"
#include "schedule/topology.h"

namespace theseus {

class AgreementLinks {
 public:
  enum class Kind : uint32_t { Agreement = 1, Member = 2, Nudge = 3 };
  // On the watch thread.
  using Receive = std::function<void(int from, Kind kind, std::string bytes)>;

  static Result<std::unique_ptr<AgreementLinks>> open(const CommId& communicator, int rank, std::vector<Peer> peers,
                                                      const Topology& topology, Receive receive);
  // As close().
  ~AgreementLinks();

  // No callback is under way when it returns (but for one that calls it), and none follows. Idempotent.
  void close();

  // From any thread. What cannot be delivered is dropped: who waits for it notices by the control star.
  void send(int to, Kind kind, std::string bytes);

 private:
  struct State;
  explicit AgreementLinks(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace theseus
