// Messages of agreements between ranks that share a host, through its shared segment: no system call, no other thread.
//
// Nobody is woken: a rank looks when its requests come to it, and whoever has to wait for one that is elsewhere nudges
// it over a socket (AgreementLinks), whereupon its watch thread looks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "runtime/links.h"

namespace theseus {

class Mailboxes {
 public:
  // To and from each of `peers`, all of this host. Error: no address space.
  static Result<Mailboxes> open(Links& links, const std::vector<int>& peers);

  const std::vector<int>& peers() const { return peers_; }
  bool has(int peer) const;
  // InternalError: 64 messages lie there unread, or it is longer than a slot; no agreement does that.
  Status send(int to, std::string_view bytes);
  // The oldest message of a peer; null where there is none. Valid until drop(), which is due after each.
  const Message* look(int from);
  void drop(int from);

 private:
  struct Pair {
    SendPort* send = nullptr;
    RecvPort* recv = nullptr;
  };
  size_t index_of(int peer) const;

  std::vector<int> peers_;
  std::vector<Pair> pairs_;  // as peers_
};

}  // namespace theseus
