#include "runtime/mailboxes.h"

#include <algorithm>
#include <cstring>

namespace theseus {
namespace {

// Plans from outside number channels from the other end (outside_plan.cc).
constexpr int kMailChannel = kMostShmChannels - 1;
// No request sends these.
constexpr SignatureTag kNoRequest{};

}  // namespace

Result<Mailboxes> Mailboxes::open(Links& links, const std::vector<int>& peers) {
  Mailboxes boxes;
  boxes.peers_ = peers;
  for (const int peer : peers) {
    Result<SendPort*> send = links.send_port(peer, 0, kMailChannel);
    if (!send.ok()) return send.status();
    Result<RecvPort*> recv = links.recv_port(peer, 0, kMailChannel);
    if (!recv.ok()) return recv.status();
    (*send)->set_tag(kNoRequest);
    boxes.pairs_.push_back({*send, *recv});
  }
  return boxes;
}

size_t Mailboxes::index_of(int peer) const {
  return static_cast<size_t>(std::find(peers_.begin(), peers_.end(), peer) - peers_.begin());
}

bool Mailboxes::has(int peer) const { return index_of(peer) < peers_.size(); }

Status Mailboxes::send(int to, std::string_view bytes) {
  SendPort& port = *pairs_[index_of(to)].send;
  void* room = bytes.size() <= port.slot_bytes() ? port.acquire(bytes.size()) : nullptr;
  if (room == nullptr) return Status::internal("no room for a message of an agreement to rank " + std::to_string(to));
  std::memcpy(room, bytes.data(), bytes.size());
  port.commit(bytes.size());
  return {};
}

const Message* Mailboxes::look(int from) { return pairs_[index_of(from)].recv->peek(); }

void Mailboxes::drop(int from) { pairs_[index_of(from)].recv->release(); }

}  // namespace theseus
