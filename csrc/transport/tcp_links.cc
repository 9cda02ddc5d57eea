#include "transport/tcp_links.h"

#include <poll.h>

#include <algorithm>
#include <ctime>
#include <limits>
#include <unordered_map>

#include "base/env.h"
#include "net/process_server.h"
#include "transport/flow_page.h"
#include "transport/tcp_aid.h"
#include "transport/tcp_port.h"
#include "transport/tcp_recv_port.h"
#include "transport/tcp_watch.h"

namespace theseus {
namespace {

// Reading ahead on connections that nobody waits for: this often, plus a share for each connection.
constexpr uint64_t kReadAheadNs = 20'000;
constexpr uint64_t kReadAheadPerPortNs = 2'000;
// An idle virtual NIC saves up bytes for longer than this, so nothing is lost by sleeping that long at least.
constexpr uint64_t kShortestPacingSleepNs = 200'000;
constexpr long kFlushSleepNs = 1'000'000;
constexpr int kFlushLooks = 100;

uint64_t port_key(int peer, int rail, int channel) {
  return static_cast<uint64_t>(peer) << 32 | static_cast<uint64_t>(rail) << 16 | static_cast<uint64_t>(channel);
}

const Address* address_of_family(const Nic& nic, int family) {
  for (const Address& address : nic.addresses) {
    if (address.family() == family) return &address;
  }
  return nullptr;
}

}  // namespace

struct TcpLinks::Impl final : Tended {
  CommId communicator;
  int rank;
  std::vector<TcpPeer> peers;
  std::vector<Nic> nics;
  size_t slot_bytes;
  int slots;
  Pacing* pacing = nullptr;
  ProcessServer* server = nullptr;
  std::shared_ptr<TcpInbox> inbox;
  std::unordered_map<uint64_t, std::unique_ptr<TcpSendPort>> send_ports;
  std::unordered_map<uint64_t, std::unique_ptr<TcpRecvPort>> recv_ports;
  struct Rail {
    std::vector<TcpSendPort*> senders;
    std::vector<TcpRecvPort*> receivers;
    size_t next_sender = 0;
    size_t next_receiver = 0;
  };
  std::vector<Rail> rails;
  uint64_t read_ahead_at_ns = 0;
  std::vector<pollfd> poll_set;
  Status status;                // the first failure, for good
  std::unique_ptr<TcpAid> aid;  // null: switched off, or one rail

  ~Impl() override = default;
  void start_aid();
  int rails_to(int peer) const;
  Hello hello_to(const TcpRoute& route) const;
  bool tend(uint64_t now) override;
  bool unsettled() const;
  void note(const Status& moved) {
    if (!moved.ok() && status.ok()) status = moved;
  }
  void check_way(TcpSendPort& port);
  Result<TcpRoute> route_to(int peer, int rail, int channel) const;
  Rail& rail_of(int rail);
  template <class Port, class Serve>
  static void in_service_order(const std::vector<Port*>& ports, size_t& next, Serve&& serve);
  bool pending() const;
  Status write_all();
  Status read_ahead(uint64_t now);
  uint64_t gather_poll_set(uint64_t now);
};

// The one place that decides who may use a rail first: the ports take turns, and whoever moved bytes goes to the end
// of the queue (a paced port moves about one quantum at a time). `serve` returns whether it did.
template <class Port, class Serve>
void TcpLinks::Impl::in_service_order(const std::vector<Port*>& ports, size_t& next, Serve&& serve) {
  const size_t count = ports.size();
  const size_t first = next;
  for (size_t i = 0; i < count; ++i) {
    const size_t index = first + i < count ? first + i : first + i - count;
    if (serve(*ports[index])) next = index + 1 < count ? index + 1 : 0;
  }
}

TcpLinks::Impl::Rail& TcpLinks::Impl::rail_of(int rail) {
  if (rails.size() <= static_cast<size_t>(rail)) rails.resize(static_cast<size_t>(rail) + 1);
  return rails[static_cast<size_t>(rail)];
}

Result<TcpRoute> TcpLinks::Impl::route_to(int peer, int rail, int channel) const {
  if (peer < 0 || peer >= static_cast<int>(peers.size()) || peer == rank || rail < 0 || channel < 0 ||
      channel > std::numeric_limits<uint16_t>::max()) {
    return Status::internal("there is no TCP connection to rank " + std::to_string(peer) + ", rail " +
                            std::to_string(rail) + ", channel " + std::to_string(channel));
  }
  const TcpPeer& other = peers[static_cast<size_t>(peer)];
  const auto rails = static_cast<size_t>(rails_to(peer));
  if (rails == 0) {
    return Status::system("no network interface leads to rank " + std::to_string(peer) + " (" + other.host +
                          "): see NCCL_SOCKET_IFNAME and THESEUS_NICS");
  }
  TcpRoute route;
  route.peer = peer;
  route.host = other.host;
  route.identity = other.identity.empty() ? other.host : other.identity;
  route.rail = static_cast<int>(static_cast<size_t>(rail) % rails);
  route.channel = channel;
  route.remote = other.rails[static_cast<size_t>(route.rail)];
  const Nic& nic = nics[static_cast<size_t>(route.rail)];
  const Address* local = address_of_family(nic, route.remote.family());
  if (local == nullptr) {
    return Status::system("interface " + nic.name + " (rail " + std::to_string(route.rail) +
                          ") has no address of the same family as " + route.remote.ip_string() + " of rank " +
                          std::to_string(peer) + " (" + other.host + "): see NCCL_SOCKET_FAMILY");
  }
  route.local = *local;
  return route;
}

int TcpLinks::Impl::rails_to(int peer) const {
  return static_cast<int>(std::min(peers[static_cast<size_t>(peer)].rails.size(), nics.size()));
}

Hello TcpLinks::Impl::hello_to(const TcpRoute& route) const {
  Hello hello;
  hello.communicator = communicator;
  hello.purpose = Purpose::Data;
  hello.source = rank;
  hello.destination = route.peer;
  hello.rail = route.rail;
  hello.channel = route.channel;
  return hello;
}

void TcpLinks::Impl::start_aid() {
  TcpAid::Links links;
  links.rails_to = [this](int peer) { return rails_to(peer); };
  links.open_spare = [this](int peer, int rail) -> std::unique_ptr<SpareSender> {
    Result<TcpRoute> route = route_to(peer, rail, 0);
    if (!route.ok()) return nullptr;
    route->channel = kSpareChannel;
    const Hello hello = hello_to(*route);
    return std::make_unique<SpareSender>(std::move(*route), hello, slot_bytes, pacing);
  };
  links.receiver = [this](int peer, int rail, int channel) -> TcpRecvPort* {
    const auto found = recv_ports.find(port_key(peer, rail, channel));
    return found == recv_ports.end() ? nullptr : found->second.get();
  };
  links.inbox = inbox;
  links.slot_bytes = slot_bytes;
  links.pacing = pacing;
  aid = std::make_unique<TcpAid>(std::move(links));
}

bool TcpLinks::Impl::unsettled() const {
  for (const Rail& rail : rails) {
    for (const TcpSendPort* port : rail.senders) {
      if (port->unsettled()) return true;
    }
  }
  return aid != nullptr && aid->unsettled();
}

bool TcpLinks::Impl::tend(uint64_t now) {
  (void)write_all();  // the user is told when it comes back
  for (Rail& rail : rails) {
    for (TcpSendPort* port : rail.senders) port->sample_if_due(now);
  }
  if (aid != nullptr) aid->tend(now);
  return !unsettled();
}

// A connection that broke ends the communicator only where no other rail leads to the peer.
void TcpLinks::Impl::check_way(TcpSendPort& port) {
  if (!port.lost()) return;
  if (aid == nullptr || !aid->way_around(port.route().peer, port.route().rail)) port.give_up();
}

bool TcpLinks::Impl::pending() const {
  for (const Rail& rail : rails) {
    for (const TcpSendPort* port : rail.senders) {
      if (port->pending()) return true;
    }
  }
  return false;
}

Status TcpLinks::Impl::write_all() {
  for (Rail& rail : rails) {
    in_service_order(rail.senders, rail.next_sender, [this](TcpSendPort& port) {
      if (!port.busy()) return false;
      const uint64_t before = port.bytes_moved();
      (void)port.advance();  // its state says more, once the other rails were looked at
      check_way(port);
      note(port.state());
      return port.bytes_moved() != before;
    });
  }
  return status;
}

Status TcpLinks::Impl::read_ahead(uint64_t now) {
  for (Rail& rail : rails) {
    in_service_order(rail.receivers, rail.next_receiver, [this](TcpRecvPort& port) {
      const uint64_t before = port.bytes_moved();
      note(port.progress());
      return port.bytes_moved() != before;
    });
    for (TcpSendPort* port : rail.senders) {
      port->sample_if_due(now);
      port->watch_over(now);
      check_way(*port);
      note(port->state());
    }
  }
  read_ahead_at_ns = now + kReadAheadNs + kReadAheadPerPortNs * recv_ports.size();
  return status;
}

// Returns the time when something is due by the clock, UINT64_MAX for never.
uint64_t TcpLinks::Impl::gather_poll_set(uint64_t now) {
  poll_set.clear();
  uint64_t due = UINT64_MAX;
  const auto add = [&](int fd, short events, uint64_t until) {
    if (fd >= 0) {
      poll_set.push_back({fd, events, 0});
    } else if (until != 0) {
      due = std::min(due, std::max(until, now + kShortestPacingSleepNs));
    }
  };
  bool expecting = false;
  for (const Rail& rail : rails) {
    for (const TcpSendPort* port : rail.senders) add(port->wait_fd(now), POLLOUT, port->wait_until_ns());
    for (const TcpRecvPort* port : rail.receivers) {
      add(port->wait_fd(now), POLLIN, port->wait_until_ns());
      expecting |= !port->connected();
    }
  }
  if (expecting) add(inbox->wake_fd(), POLLIN, 0);
  if (aid != nullptr) {
    aid->visit_waits(now, add);
    if (unsettled()) due = std::min(due, std::max(aid->due_ns(), now + kShortestPacingSleepNs));
  }
  return due;
}

TcpLinks::TcpLinks(const CommId& communicator, int rank, std::vector<TcpPeer> peers, std::vector<Nic> nics,
                   size_t slot_bytes, int slots)
    : impl_(std::make_unique<Impl>()) {
  impl_->communicator = communicator;
  impl_->rank = rank;
  impl_->peers = std::move(peers);
  impl_->nics = std::move(nics);
  impl_->slot_bytes = slot_bytes;
  impl_->slots = slots;
  impl_->inbox = std::make_shared<TcpInbox>();
  TcpWatch::add(impl_.get());
}

TcpLinks::~TcpLinks() {
  TcpWatch::remove(impl_.get());
  if (impl_->server != nullptr) impl_->server->unregister_handler(impl_->communicator, Purpose::Data, impl_->rank);
}

Status TcpLinks::open() {
  Result<Pacing*> pacing = Pacing::for_this_host();
  if (!pacing.ok()) return pacing.status();
  impl_->pacing = *pacing;
  describe_rails(static_cast<int>(impl_->nics.size()), static_cast<uint64_t>(settings::nic_rate()));
  Result<ProcessServer*> server = ProcessServer::get();
  if (!server.ok()) return server.status();
  impl_->server = *server;
  if (settings::first_aid() && impl_->nics.size() > 1) impl_->start_aid();
  // The handler may outlive this object by a moment: it owns the inbox.
  const int ranks = static_cast<int>(impl_->peers.size());
  impl_->server->register_handler(impl_->communicator, Purpose::Data, impl_->rank,
                                  [inbox = impl_->inbox, ranks](const Hello& hello, Socket socket) {
                                    if (hello.source < 0 || hello.source >= ranks) return;
                                    inbox->put(hello, std::move(socket));
                                  });
  return {};
}

Result<SendPort*> TcpLinks::send_port(int peer, int rail, int channel) {
  impl_->enter();
  Result<TcpRoute> route = impl_->route_to(peer, rail, channel);
  if (!route.ok()) return route.status();
  rail = route->rail;
  std::unique_ptr<TcpSendPort>& port = impl_->send_ports[port_key(peer, rail, channel)];
  if (port == nullptr) {
    TcpSendPort::Options options;
    options.slot_bytes = impl_->slot_bytes;
    options.slots = impl_->slots;
    options.pacing = impl_->pacing;
    options.tended = impl_.get();
    options.aided = impl_->aid != nullptr && impl_->rails_to(peer) > 1;
    const Hello hello = impl_->hello_to(*route);
    port = std::make_unique<TcpSendPort>(std::move(*route), hello, options);
    impl_->rail_of(rail).senders.push_back(port.get());
    if (options.aided) impl_->aid->add_sender(port.get());
  }
  return port.get();
}

Result<RecvPort*> TcpLinks::recv_port(int peer, int rail, int channel) {
  impl_->enter();
  Result<TcpRoute> route = impl_->route_to(peer, rail, channel);
  if (!route.ok()) return route.status();
  rail = route->rail;
  std::unique_ptr<TcpRecvPort>& port = impl_->recv_ports[port_key(peer, rail, channel)];
  if (port == nullptr) {
    port =
        std::make_unique<TcpRecvPort>(std::move(*route), impl_->inbox, impl_->slot_bytes, impl_->slots, impl_->pacing);
    impl_->rail_of(rail).receivers.push_back(port.get());
    if (impl_->aid != nullptr && impl_->rails_to(peer) > 1) impl_->aid->add_receiver(port.get());
  }
  return port.get();
}

Status TcpLinks::progress() {
  impl_->enter();
  THESEUS_TRY(impl_->write_all());
  const uint64_t now = now_ns();
  if (impl_->aid != nullptr) {
    impl_->aid->tend(now);
    impl_->note(impl_->aid->receive(now));
  }
  return now < impl_->read_ahead_at_ns ? impl_->status : impl_->read_ahead(now);
}

void TcpLinks::wait(long nanoseconds) {
  impl_->enter();
  const uint64_t now = now_ns();
  uint64_t due = impl_->gather_poll_set(now);
  if (nanoseconds >= 0) due = std::min(due, now + static_cast<uint64_t>(nanoseconds));
  const uint64_t left = due > now ? due - now : 0;
  timespec timeout{static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
  const int ready =
      ppoll(impl_->poll_set.data(), impl_->poll_set.size(), due == UINT64_MAX ? nullptr : &timeout, nullptr);
  impl_->read_ahead_at_ns = 0;
  if (ready <= 0) return;
  impl_->inbox->clear();
  if (impl_->aid != nullptr) impl_->aid->expect();
}

Status TcpLinks::flush(const Deadline& deadline) {
  impl_->enter();
  for (int looks = 0; impl_->pending(); ++looks) {
    THESEUS_TRY(progress());
    if (looks < kFlushLooks) continue;
    if (deadline.expired()) return deadline.status("handing over messages to the network");
    wait(kFlushSleepNs);
  }
  if (impl_->aid != nullptr) impl_->aid->say_all();
  if (impl_->server != nullptr && impl_->unsettled()) impl_->lend(impl_->server->loop());
  return impl_->status;
}

bool TcpLinks::pending() const {
  impl_->enter();
  return impl_->pending();
}

bool TcpLinks::empty() const { return impl_->send_ports.empty() && impl_->recv_ports.empty(); }

}  // namespace theseus
