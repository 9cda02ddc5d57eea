// The receiving half of first aid: messages that came another way, and the receipts for them.
#include <algorithm>

#include "base/clock.h"
#include "base/env.h"
#include "transport/tcp_aid.h"

namespace theseus {
namespace {

constexpr uint64_t kReceiveNs = 1'000'000;  // nothing is read more often unless the kernel says that there is something
constexpr uint64_t kSayAfter = 4;           // messages

}  // namespace

void TcpAid::add_receiver(TcpRecvPort* port) {
  Peer& peer = peer_of(port->route().peer);
  peer.recv_ports.push_back(port);
  if (peer.recv_ports.size() == 1) {
    peer.expect_until_ns = now_ns() + static_cast<uint64_t>(settings::heartbeat_timeout() * 1e9);
  }
  if (links_.pacing != nullptr) {
    peer.aided[port];  // all are told of, always
  }
  update_ways(peer);
}

Status TcpAid::receive(uint64_t now) {
  if (now < receive_at_ns_) return {};
  receive_at_ns_ = now + kReceiveNs;
  unsaid_ = false;
  const bool arrivals = links_.inbox->changed(&inbox_seen_);
  for (auto& [number, peer] : peers_) {
    if (arrivals) take_spares(number, peer);
    bool ended = false;
    for (size_t i = 0; i < peer.receivers.size(); ++i) {
      SpareReceiver& receiver = *peer.receivers[i];
      if (!receiver.alive()) continue;
      const int source = number;
      Peer& from = peer;
      THESEUS_TRY(receiver.progress([this, source, &from](SpareReceiver& by, TcpSlot message) {
        receive_at_ns_ = 0;
        return deliver(source, from, by, std::move(message));
      }));
      ended |= !receiver.alive();
    }
    if (ended || (now >= peer.expect_until_ns && peer.expect_until_ns != 0)) {
      if (now >= peer.expect_until_ns) peer.expect_until_ns = 0;
      update_ways(peer);
    }
    say_receipts(peer, false);
  }
  return {};
}

void TcpAid::take_spares(int number, Peer& peer) {
  for (size_t rail = 0; rail < peer.lanes.size(); ++rail) {
    Socket socket = links_.inbox->take(number, static_cast<int>(rail), kSpareChannel);
    if (!socket.valid()) continue;
    peer.receivers.push_back(
        std::make_unique<SpareReceiver>(static_cast<int>(rail), std::move(socket), links_.slot_bytes, links_.pacing));
    update_ways(peer);
  }
}

Status TcpAid::deliver(int number, Peer& peer, SpareReceiver& receiver, TcpSlot message) {
  const TcpHeader& header = *message.header();
  TcpRecvPort* port = header.rail < peer.lanes.size() ? links_.receiver(number, header.rail, header.channel) : nullptr;
  if (port == nullptr) return {};
  Aided& aided = peer.aided[port];
  aided.by = &receiver;
  aided.owed = true;
  if (header.kind == TcpHeader::kQuestion) return {};
  aided.highest = std::max(aided.highest, header.sequence);
  return port->accept(std::move(message));
}

void TcpAid::say_all() {
  for (auto& [number, peer] : peers_) say_receipts(peer, true);
}

void TcpAid::say_receipts(Peer& peer, bool all) {
  // Behind virtual NICs all connections are told of, always; else those with messages that came another way.
  const bool always = links_.pacing != nullptr;
  for (auto each = peer.aided.begin(); each != peer.aided.end();) {
    auto& [port, aided] = *each;
    const TcpReceipt now = port->receipt();
    const bool done = now.released > aided.highest;
    const bool news =
        now.complete >= aided.said.complete + kSayAfter || now.released >= aided.said.released + kSayAfter;
    if (!aided.owed && !news && (now == aided.said || !(always || all || done))) {
      each = done && !always && now == aided.said ? peer.aided.erase(each) : std::next(each);
      continue;
    }
    for (const auto& receiver : peer.receivers) {
      if ((aided.by == nullptr || !aided.by->alive()) && receiver->alive()) aided.by = receiver.get();
    }
    if (aided.by != nullptr && aided.by->say(now)) {
      aided.said = now;
      aided.owed = false;
    } else {
      unsaid_ = true;
    }
    ++each;
  }
}

// A spare connection that has not come yet may be on its way.
void TcpAid::update_ways(Peer& peer) {
  const bool early = now_ns() < peer.expect_until_ns;
  for (TcpRecvPort* port : peer.recv_ports) {
    bool there = false;
    for (int rail = 0; rail < static_cast<int>(peer.lanes.size()); ++rail) {
      if (rail == port->route().rail) continue;
      const auto on_rail = [rail](const auto& receiver) { return receiver->rail() == rail; };
      const auto found = std::find_if(peer.receivers.begin(), peer.receivers.end(), on_rail);
      there |= found == peer.receivers.end() ? early : (*found)->alive();
    }
    port->set_another_way(there);
  }
}

}  // namespace theseus
