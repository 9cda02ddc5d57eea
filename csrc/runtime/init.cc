// How a communicator comes to be: by a unique id, by split, by shrink; and how it ends.
#include <algorithm>
#include <mutex>
#include <set>

#include "base/env.h"
#include "base/fork.h"
#include "base/log.h"
#include "net/process_server.h"
#include "net/rendezvous.h"
#include "net/wire.h"
#include "runtime/impl.h"
#include "transport/shared_memory.h"

namespace theseus {
namespace {

// Peers' shared buffers are fetched from their owner's ProcessServer; this is where owners are looked up.
class BufferOwners {
 public:
  static BufferOwners& instance() {
    static BufferOwners& owners = *new BufferOwners;
    return owners;
  }

  void learn(const std::vector<Peer>& peers) {
    const std::lock_guard lock(mutex_);
    for (const Peer& peer : peers) unix_names_[peer.memory_tag] = peer.unix_name;
  }

  // Serves this process's buffers, and knows how to get others'. Once a process.
  Status serve() {
    static const Status status = [this]() -> Status {
      Result<ProcessServer*> server = ProcessServer::get();
      if (!server.ok()) return server.status();
      (*server)->register_fallback(Purpose::Buffer, [](const Hello& hello, Socket socket) {
        Fd fd(socket.peer_is_same_user() ? SharedMemory::descriptor(hello.tag) : -1);
        if (fd.valid()) (void)socket.send_descriptor(fd.get(), "B", 1, Deadline::after(1)).ok();
      });
      SharedMemory::set_fetch([this](uint64_t id) { return fetch(id); });
      return {};
    }();
    return status;
  }

 private:
  int fetch(uint64_t id) {
    std::string name;
    {
      const std::lock_guard lock(mutex_);
      const auto found = unix_names_.find(static_cast<uint32_t>(id >> 32));
      if (found == unix_names_.end()) return -1;
      name = found->second;
    }
    Hello hello;
    hello.communicator = {id, kBuffers};
    hello.purpose = Purpose::Buffer;
    hello.tag = id;
    Result<Socket> socket = ProcessServer::connect_unix(name, hello, Deadline::after(5));
    if (!socket.ok() || !socket->peer_is_same_user()) return -1;
    char byte = 0;
    Result<Fd> fd = socket->recv_descriptor(&byte, 1, Deadline::after(5));
    return fd.ok() ? fd->release() : -1;
  }

  static constexpr uint64_t kBuffers = 0x425546464552;  // no communicator: "BUFFER"
  std::mutex mutex_;
  std::map<uint32_t, std::string> unix_names_;  // by memory tag
};

}  // namespace

Status Communicator::Impl::join(const UniqueId& unique_id) {
  return meet(unique_id, Deadline::after(settings::init_timeout()).with_cancel(&aborted));
}

// Everybody's color and key over the parent's star, then the ranks of one color meet like any others, under an id that
// they derive alike.
Status Communicator::Impl::join_split(Communicator::Impl& parent, int color, int key) {
  // Not held while the members meet, which may take long: an abort of the parent waits for this lock.
  std::unique_lock lock(parent.running);
  THESEUS_TRY(parent.usable());
  const int generation = parent.splits++;
  std::vector<std::string> blobs(1);
  WireWriter own;
  own.number(color);
  own.number(key);
  if (parent.star == nullptr) {
    blobs[0] = own.take();
  } else {
    const Deadline deadline = Deadline::after(settings::init_timeout()).with_cancel(&parent.aborted);
    Result<std::vector<std::string>> gathered = parent.star->all_gather(own.take(), deadline);
    if (!gathered.ok()) return gathered.status();
    blobs = std::move(*gathered);
  }
  if (color < 0) return {};
  std::vector<std::pair<int, int>> members;  // key, parent rank
  for (size_t rank = 0; rank < blobs.size(); ++rank) {
    WireReader in(blobs[rank]);
    const int its_color = in.number<int>();
    const int its_key = in.number<int>();
    if (!in.at_end()) return Status::internal("rank " + std::to_string(rank) + " sent a malformed split");
    if (its_color == color) members.emplace_back(its_key, static_cast<int>(rank));
  }
  std::stable_sort(members.begin(), members.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  const auto me = std::find_if(members.begin(), members.end(),
                               [&](const auto& member) { return member.second == parent.self->rank(); });
  CommunicatorAccess::set_shape(*self, static_cast<int>(members.size()), static_cast<int>(me - members.begin()));
  UniqueId unique_id{};
  if (members.size() > 1) {
    const Id128 nonce = derive_id(parent.id, "split " + std::to_string(generation) + " color " + std::to_string(color));
    unique_id = derive_unique_id(nonce, parent.peers[members.front().second].server);
  }
  lock.unlock();
  return join(unique_id);
}

Status Communicator::Impl::join_shrink(const Communicator::Impl& parent, const std::vector<int>& survivors,
                                       int generation) {
  UniqueId unique_id{};
  if (survivors.size() > 1) {
    std::string label = "shrink " + std::to_string(generation);
    for (const int rank : survivors) label += " " + std::to_string(rank);
    unique_id = derive_unique_id(derive_id(parent.id, label), parent.peers[survivors.front()].server);
  }
  return join(unique_id);
}

Status Communicator::Impl::meet(const UniqueId& unique_id, const Deadline& deadline) {
  THESEUS_TRY(check_not_forked());
  const int rank = self->rank();
  const int ranks = self->ranks();
  ordinal = self->config().device;
  if (ranks == 1) {
    topology = single_host(1);
    THESEUS_TRY(open_device());
    return become_ready();
  }
  THESEUS_TRY(BufferOwners::instance().serve());
  Result<Peer> own = describe_self(ordinal);
  if (!own.ok()) return own.status();
  const std::string must_agree = "THESEUS_ALGO=" + settings::algo() + ";THESEUS_SCHEDULING=" + settings::scheduling() +
                                 ";THESEUS_FALLBACK=" + settings::fallback();
  Result<RendezvousResult> met = rendezvous(unique_id, rank, ranks, encode(*own), deadline, must_agree);
  if (!met.ok()) return met.status();
  id = met->communicator;
  for (const std::string& blob : met->blobs) {
    Result<Peer> peer = decode_peer(blob);
    if (!peer.ok()) return peer.status();
    peers.push_back(std::move(*peer));
  }
  BufferOwners::instance().learn(peers);
  topology = topology_of(peers);
  forwards = summary_of(topology).hosts > 1 &&
             std::all_of(peers.begin(), peers.end(), [](const Peer& peer) { return peer.real_nccl; });
  static std::once_flag told;
  if (forwards) {
    std::call_once(told, [] {
      THESEUS_WARN(
          "communicators of several hosts run on the real NCCL, as RDMA outruns our TCP; THESEUS_NET=tcp keeps them "
          "here");
    });
  }
  Result<std::unique_ptr<Star>> connected = Star::connect(id, rank, ranks, peers[0].server, deadline);
  if (!connected.ok()) return connected.status();
  star = std::move(*connected);
  star->on_failure([this](const Status& status) { set_failure(status); });
  Result<std::unique_ptr<Links>> built = Links::build(id, rank, peers, topology, deadline);
  if (!built.ok()) {
    star->fail(built.status());
    return built.status();
  }
  links = std::move(*built);
  if (Status opened = open_device(); !opened.ok()) {
    star->fail(opened);
    return opened;
  }
  // Ready means that everybody is: a rank that could not map memory or open a port has told the star by now.
  Result<std::vector<std::string>> all = star->all_gather(links->can_fetch() ? "1" : "0", deadline);
  if (!all.ok()) return all.status();
  links->allow_fetch(std::find(all->begin(), all->end(), "0") == all->end());
  return become_ready();
}

// Before this rank says that it is ready, since peers may ask for its memory from then on.
Status Communicator::Impl::open_device() {
  Result<std::unique_ptr<DeviceRank>> opened =
      DeviceRank::open(id, self->rank(), peers, topology, ordinal, links == nullptr ? 0 : links->slot_bytes());
  if (!opened.ok()) return opened.status();
  device = std::move(*opened);
  if (std::unique_ptr<TcpLinks> network; device != nullptr && links != nullptr) {
    network = links->release_network();
    if (network != nullptr) device->use_network(std::move(network), [this](const Status& why) { (void)fail(why); });
  }
  abortable.store(device.get(), std::memory_order_release);
  // A failure that came before would have found nobody to tell.
  if (device != nullptr && failed.load(std::memory_order_acquire)) device->abort();
  return {};
}

Status Communicator::Impl::become_ready() {
  Result<Forced> forced = parse_algo(settings::algo());
  if (!forced.ok()) THESEUS_WARN("%s; the policy picks instead", forced.status().message().c_str());
  Result<Scheduling> scheduling = parse_scheduling(settings::scheduling());
  if (!scheduling.ok()) THESEUS_WARN("%s; it is per-connection instead", scheduling.status().message().c_str());
  plans = std::make_unique<PlanCache>(self->rank(), topology, links.get(), forced.ok() ? *forced : Forced{},
                                      scheduling.ok() ? *scheduling : Scheduling::PerConnection,
                                      static_cast<size_t>(settings::resource_bytes()), device.get());
  if (self->ranks() > 1 && std::all_of(peers.begin(), peers.end(), [](const Peer& peer) { return peer.adapts; })) {
    Result<std::shared_ptr<Adaptation>> started = Adaptation::start(id, self->rank(), peers, topology, *links);
    if (!started.ok()) return started.status();
    adaptation = std::move(*started);
    plans->use_context(*adaptation);
    if (settings::job_log().empty()) {
      report = RankReport::start(id, self->config().name, self->rank(), self->ranks(), adaptation);
    }
    plans->report_to(report.get());
    next_event = adaptation->next_event();
  }
  if (device == nullptr && links != nullptr && links->segment() != nullptr && links->local_ranks() == self->ranks()) {
    std::vector<bool> same_process;
    for (const Peer& peer : peers) same_process.push_back(peer.process == peers[self->rank()].process);
    shared = std::make_unique<SharedExecution>(*links->segment(), self->rank(), self->ranks(), std::move(same_process));
  }
  timeout = settings::timeout();
  trace = Trace::open(self->rank(), self->config().name.empty() ? id.to_string().substr(0, 8) : self->config().name);
  // With more ranks than cores, whoever spins keeps the one it waits for from running.
  crowded = links != nullptr && links->crowded();
  spins = static_cast<int>(crowded ? std::min<int64_t>(settings::spin(), 20) : settings::spin());
  phase.store(Phase::Ready, std::memory_order_release);
  THESEUS_INFO(kLogInit, "communicator %s%s: rank %d of %d is ready", id.to_string().c_str(),
               self->config().name.empty() ? "" : (" (" + self->config().name + ")").c_str(), self->rank(),
               self->ranks());
  return {};
}

// In good order: what was asked for is done, what was sent is on its way, and the others know that this rank leaves.
Status Communicator::Impl::leave() {
  progress.drain();
  const std::lock_guard lock(running);
  if (device != nullptr) (void)wait_for_device().ok();
  const Status outcome = failed.load(std::memory_order_acquire) ? failure_status() : Status();
  if (adaptation != nullptr && outcome.ok()) {
    const Deadline deadline = Deadline::after(settings::heartbeat_timeout());
    (void)adaptation->finish([&] { return deadline.expired() ? Status::timeout("") : check_alive(); });
  }
  if (links != nullptr && outcome.ok()) {
    const Deadline deadline = Deadline::after(settings::heartbeat_timeout()).with_cancel(&failed);
    THESEUS_TRY(links->flush(deadline));
    if (device != nullptr) THESEUS_TRY(device->flush(deadline));
  }
  phase.store(Phase::Finalized, std::memory_order_release);
  if (links != nullptr) links->leave();
  if (star != nullptr) star->close();
  return outcome;
}

}  // namespace theseus
