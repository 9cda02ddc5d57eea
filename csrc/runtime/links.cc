#include "runtime/links.h"

#include <signal.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>

#include "base/cores.h"
#include "base/env.h"
#include "net/process_server.h"
#include "transport/shared_memory.h"

namespace theseus {
namespace {

// Slots shrink as local ranks grow in number, so that a busy communicator stays small: n*n connections exist.
size_t default_slot_bytes(int ranks) {
  if (ranks <= 8) return 128 << 10;
  if (ranks <= 16) return 64 << 10;
  return 32 << 10;
}

size_t agreed_slot_bytes(const std::vector<Peer>& peers) {
  size_t bytes = default_slot_bytes(static_cast<int>(peers.size()));
  for (const Peer& peer : peers) {
    if (peer.slot_bytes != 0) bytes = std::min<size_t>(bytes, peer.slot_bytes);
  }
  return std::max<size_t>(1024, bytes / 64 * 64);
}

}  // namespace

Links::Links(int rank, const std::vector<Peer>& peers, const Topology& topology)
    : rank_(rank),
      peers_(peers),
      topology_(topology),
      local_index_(peers.size(), -1),
      slot_bytes_(agreed_slot_bytes(peers)),
      shm_(peers.size()) {
  for (size_t other = 0; other < peers.size(); ++other) {
    if (topology.host_of_rank[other] == topology.host_of_rank[rank]) local_index_[other] = local_ranks_++;
  }
  std::vector<std::string> masks;
  int quota = 0;
  for (size_t other = 0; other < peers.size(); ++other) {
    if (!is_local(static_cast<int>(other))) continue;
    masks.push_back(peers[other].core_mask);
    quota = std::max(quota, peers[other].core_quota);
  }
  local_cores_ = count_cores(masks);
  if (quota > 0) local_cores_ = std::min(local_cores_, quota);
}

Links::~Links() = default;

Result<std::unique_ptr<Links>> Links::build(const CommId& communicator, int rank, const std::vector<Peer>& peers,
                                            const Topology& topology, const Deadline& deadline) {
  auto links = std::unique_ptr<Links>(new Links(rank, peers, topology));
  THESEUS_TRY(links->build_segment(communicator, peers, deadline));
  if (links->local_ranks_ < static_cast<int>(peers.size())) {
    std::vector<TcpPeer> remote;
    for (size_t other = 0; other < peers.size(); ++other) {
      remote.push_back({static_cast<int>(other), peers[other].host_name, peers[other].rails, peers[other].host});
    }
    Result<std::vector<Nic>> nics = local_nics();
    if (!nics.ok()) return nics.status();
    links->tcp_ =
        std::make_unique<TcpLinks>(communicator, rank, std::move(remote), *nics, links->slot_bytes_, kMaxSlots);
    THESEUS_TRY(links->tcp_->open());
  }
  return links;
}

Status Links::build_segment(const CommId& communicator, const std::vector<Peer>& peers, const Deadline& deadline) {
  if (local_ranks_ < 2) return {};
  SegmentGeometry geometry;
  geometry.ranks = static_cast<uint32_t>(local_ranks_);
  geometry.slot_bytes = static_cast<uint32_t>(slot_bytes_);
  for (const Peer& peer : peers) geometry.slots = std::min(geometry.slots, peer.slots);
  std::vector<int> locals;
  for (size_t other = 0; other < peers.size(); ++other) {
    if (is_local(static_cast<int>(other))) locals.push_back(static_cast<int>(other));
  }
  if (locals.front() == rank_) {
    Result<std::unique_ptr<Segment>> segment = Segment::create(geometry);
    if (!segment.ok()) return segment.status();
    segment_ = std::move(*segment);
    THESEUS_TRY(share_segment(communicator, locals, deadline));
  } else {
    THESEUS_TRY(fetch_segment(communicator, locals.front(), peers[locals.front()], geometry, deadline));
  }
  segment_->rank_page(local_index_[rank_]).pid.store(getpid(), std::memory_order_release);
  return {};
}

// The leader's side: hands the descriptor to whoever asks with the communicator's id, until all have it.
Status Links::share_segment(const CommId& communicator, const std::vector<int>& locals, const Deadline& deadline) {
  Result<ProcessServer*> server = ProcessServer::get();
  if (!server.ok()) return server.status();
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    size_t served = 0;
    Status status;
  };
  auto state = std::make_shared<State>();
  const int fd = segment_->fd();
  (*server)->register_handler(communicator, Purpose::Descriptor, rank_, [state, fd](const Hello&, Socket socket) {
    Status sent = socket.peer_is_same_user() ? socket.send_descriptor(fd, "S", 1, Deadline::after(1))
                                             : Status::system("a process of another user asked for the shared segment");
    const std::lock_guard lock(state->mutex);
    if (sent.ok()) {
      ++state->served;
    } else if (state->status.ok()) {
      state->status = sent;
    }
    state->changed.notify_all();
  });
  Status status;
  {
    std::unique_lock lock(state->mutex);
    while (state->served + 1 < locals.size() && state->status.ok() && !deadline.expired()) {
      state->changed.wait_for(lock, std::chrono::milliseconds(50));
    }
    status = state->status;
    if (status.ok() && state->served + 1 < locals.size()) {
      status = deadline.status("waiting for the local ranks to map the shared segment");
    }
  }
  (*server)->unregister_handler(communicator, Purpose::Descriptor, rank_);
  // The handler may still be running with fd; once the loop has taken another turn it is not.
  (*server)->loop().run([] {});
  return status;
}

Status Links::fetch_segment(const CommId& communicator, int leader, const Peer& peer, const SegmentGeometry& geometry,
                            const Deadline& deadline) {
  Hello hello;
  hello.communicator = communicator;
  hello.purpose = Purpose::Descriptor;
  hello.source = rank_;
  hello.destination = leader;
  Result<Socket> socket = ProcessServer::connect_unix(peer.unix_name, hello, deadline);
  if (!socket.ok()) return socket.status();
  if (!socket->peer_is_same_user()) return Status::system("rank " + std::to_string(leader) + " runs as another user");
  char byte = 0;
  Result<Fd> fd = socket->recv_descriptor(&byte, 1, deadline);
  if (!fd.ok()) return fd.status();
  Result<std::unique_ptr<Segment>> segment = Segment::attach(fd->release(), geometry);
  if (!segment.ok()) return segment.status();
  segment_ = std::move(*segment);
  return {};
}

bool Links::can_fetch() const {
  for (size_t other = 0; other < peers_.size(); ++other) {
    const Peer& peer = peers_[other];
    if (!is_local(static_cast<int>(other)) || peer.process == peers_[rank_].process) continue;
    uint64_t value = 0;
    const iovec local{&value, sizeof value};
    const iovec remote{reinterpret_cast<void*>(peer.probe), sizeof value};
    if (!peer.cross_memory || process_vm_readv(peer.pid, &local, 1, &remote, 1, 0) != sizeof value ||
        value != kProbeValue) {
      return false;
    }
  }
  return peers_[rank_].cross_memory;
}

// A core for every rank: above this, both ends copying through the slots overtake one end copying alone. Fewer cores:
// the fewer copies the better.
size_t Links::largest_fetch() const { return crowded() ? kFetchIfCrowded : 64 << 20; }

ReferencePolicy Links::references_to(int peer) const {
  ReferencePolicy policy;
  policy.same_process = peers_[peer].process == peers_[rank_].process;
  policy.shared_memory = true;
  policy.cross_memory = fetch_allowed_;
  policy.smallest_remote = kSmallestFetch;
  policy.largest_remote = largest_fetch();
  return policy;
}

Status Links::check_network() const {
  if (tcp_ != nullptr) return {};
  return Status::internal("connections to other hosts are the proxy's where buffers are on GPUs");
}

Result<SendPort*> Links::send_port(int peer, int rail, int channel) {
  if (!is_local(peer)) {
    THESEUS_TRY(check_network());
    tcp_in_use_ = true;
    return tcp_->send_port(peer, rail, channel);
  }
  auto& port = channel < kShmChannels ? shm_[peer].send[channel] : shm_[peer].more_sends[channel];
  if (port == nullptr) {
    THESEUS_TRY(segment_->open_channel(channel));
    port =
        std::make_unique<ShmSendPort>(*segment_, channel, local_index_[rank_], local_index_[peer], references_to(peer));
  }
  return port.get();
}

Result<RecvPort*> Links::recv_port(int peer, int rail, int channel) {
  if (!is_local(peer)) {
    THESEUS_TRY(check_network());
    tcp_in_use_ = true;
    return tcp_->recv_port(peer, rail, channel);
  }
  auto& port = channel < kShmChannels ? shm_[peer].recv[channel] : shm_[peer].more_recvs[channel];
  if (port == nullptr) {
    THESEUS_TRY(segment_->open_channel(channel));
    port = std::make_unique<ShmRecvPort>(*segment_, channel, local_index_[peer], local_index_[rank_]);
  }
  return port.get();
}

const char* Links::transport_to(int peer) const {
  if (peer == rank_) return "self";
  if (!is_local(peer)) return "tcp";
  return references_to(peer).same_process ? "shm (same process)" : "shm";
}

int Links::dead_local_peer() const {
  if (segment_ == nullptr) return -1;
  for (size_t other = 0; other < peers_.size(); ++other) {
    if (!is_local(static_cast<int>(other)) || static_cast<int>(other) == rank_) continue;
    const int32_t pid = segment_->rank_page(local_index_[other]).pid.load(std::memory_order_acquire);
    if (pid > 0 && kill(pid, 0) != 0 && errno == ESRCH) return static_cast<int>(other);
  }
  return -1;
}

}  // namespace theseus
