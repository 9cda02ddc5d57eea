#include "transport/tcp_links.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/env.h"
#include "tcp_testing.h"
#include "transport/flow_counters.h"

namespace theseus {
namespace {

using testing::await_failure;
using testing::await_message;
using testing::tag_of;
using testing::TcpWorld;

// What message `index` of a stream is made of; both ends work it out for themselves.
std::vector<uint8_t> contents(uint64_t stream, uint64_t index, size_t slot_bytes) {
  std::mt19937_64 random(stream * 1'000'003 + index);
  const size_t sizes[] = {0, 1, 8, 63, 1024, slot_bytes - 1, slot_bytes};
  size_t size = sizes[random() % 7];
  if (random() % 2 == 0) size = random() % (slot_bytes + 1);
  std::vector<uint8_t> bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

struct Stream {
  uint64_t id;
  SendPort* send = nullptr;
  RecvPort* recv = nullptr;
  uint64_t sent = 0;
  uint64_t received = 0;
};

// Sends and receives `messages` on each stream of one rank, both directions at once.
Status exchange(TcpLinks& links, std::vector<Stream> sends, std::vector<Stream> recvs, uint64_t messages,
                size_t slot_bytes, std::string* difference) {
  const SignatureTag tag = tag_of(7, 3);
  const Deadline deadline = Deadline::after(60);
  for (Stream& stream : sends) stream.send->set_tag(tag);
  size_t unfinished = sends.size() + recvs.size();
  while (unfinished > 0) {
    bool moved = false;
    for (Stream& stream : sends) {
      if (stream.sent == messages) continue;
      const std::vector<uint8_t> bytes = contents(stream.id, stream.sent, slot_bytes);
      void* slot = stream.send->acquire(bytes.size());
      if (slot == nullptr) continue;
      if (!bytes.empty()) std::memcpy(slot, bytes.data(), bytes.size());
      stream.send->commit(bytes.size());
      moved = true;
      if (++stream.sent == messages) --unfinished;
    }
    for (Stream& stream : recvs) {
      if (stream.received == messages) continue;
      const Message* message = stream.recv->peek();
      if (message == nullptr) continue;
      const std::vector<uint8_t> bytes = contents(stream.id, stream.received, slot_bytes);
      if (message->bytes != bytes.size() || message->signature_hash != tag.hash ||
          (!bytes.empty() && std::memcmp(message->data, bytes.data(), bytes.size()) != 0)) {
        *difference = "stream " + std::to_string(stream.id) + ", message " + std::to_string(stream.received);
      }
      stream.recv->release();
      moved = true;
      if (++stream.received == messages) --unfinished;
    }
    THESEUS_TRY(links.progress());
    if (deadline.expired()) return deadline.status("exchanging messages");
    if (!moved) links.wait(1'000'000);
  }
  return links.flush(deadline);
}

// Messages of any size arrive once each, in order and whole, on every rail and channel, both ways at once.
TEST(TcpLinks, KeepsOrderAndContents) {
  constexpr size_t kSlotBytes = 96 << 10;
  constexpr int kRails = 3, kChannels = 2;
  constexpr uint64_t kMessages = 60;
  TcpWorld world(2, kRails, kSlotBytes, 8);
  std::vector<Stream> sends[2], recvs[2];
  for (int rank = 0; rank < 2; ++rank) {
    for (int rail = 0; rail < kRails; ++rail) {
      for (int channel = 0; channel < kChannels; ++channel) {
        const uint64_t lane = static_cast<uint64_t>(rail * kChannels + channel) * 2;
        Result<SendPort*> send = world.links[rank]->send_port(1 - rank, rail, channel);
        Result<RecvPort*> recv = world.links[rank]->recv_port(1 - rank, rail, channel);
        ASSERT_TRUE(send.ok() && recv.ok());
        sends[rank].push_back({lane + rank, *send, nullptr});
        recvs[rank].push_back({lane + 1 - rank, nullptr, *recv});
      }
    }
  }
  std::string difference[2];
  Status status[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      status[rank] = exchange(*world.links[rank], sends[rank], recvs[rank], kMessages, kSlotBytes, &difference[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(status[rank].ok()) << status[rank].message();
    EXPECT_EQ(difference[rank], "");
  }
}

// slots() messages of full size fit before the receiver has done anything; more than fit are refused, not lost.
TEST(TcpLinks, HoldsAllSlotsBeforeTheReceiverLooks) {
  constexpr size_t kSlotBytes = 1 << 20;
  TcpWorld world(2, 1, kSlotBytes, 4);
  SendPort* send = *world.links[0]->send_port(1, 0, 0);
  const SignatureTag tag = tag_of(1, 1);
  send->set_tag(tag);
  uint64_t committed = 0;
  while (void* slot = send->acquire(kSlotBytes)) {
    std::memset(slot, static_cast<int>(committed), kSlotBytes);
    send->commit(kSlotBytes);
    ASSERT_LT(++committed, 1000u) << "a receiver that reads nothing must hold the sender up";
  }
  EXPECT_GE(committed, static_cast<uint64_t>(send->slots()));
  RecvPort* recv = *world.links[1]->recv_port(0, 0, 0);
  for (uint64_t index = 0; index < committed; ++index) {
    ASSERT_TRUE(world.links[0]->progress().ok());
    const Message* message = nullptr;
    while ((message = recv->peek()) == nullptr) {
      ASSERT_TRUE(world.links[0]->progress().ok());
      ASSERT_TRUE(world.links[1]->progress().ok());
    }
    ASSERT_EQ(message->bytes, kSlotBytes);
    EXPECT_EQ(static_cast<const uint8_t*>(message->data)[kSlotBytes - 1], static_cast<uint8_t>(index));
    recv->release();
  }
  EXPECT_EQ(send->released(), committed);
}

// The receiver can name the request that a message was sent under.
TEST(TcpLinks, CarriesTheSignature) {
  TcpWorld world(2, 1, 4096, 2);
  SendPort* send = *world.links[0]->send_port(1, 0, 0);
  SignatureTag tag = tag_of(12345, 0);
  tag.hash = request_hash(tag.base, 77);  // the id lives in the hash; signature.request may be stale
  send->set_tag(tag);
  ASSERT_NE(send->acquire(0), nullptr);
  send->commit(0);
  RecvPort* recv = *world.links[1]->recv_port(0, 0, 0);
  Result<const Message*> message = await_message(*world.links[1], *recv);
  ASSERT_TRUE(message.ok()) << message.status().message();
  EXPECT_EQ((*message)->bytes, 0u);
  EXPECT_EQ(recv->peer_signature().count, 12345u);
  EXPECT_EQ(recv->peer_signature().request, 77u);
}

// A rail beyond those that both ends have is one of those: the same port.
TEST(TcpLinks, TakesRailsModuloWhatBothHave) {
  TcpWorld world(2, 2, 4096, 2);
  EXPECT_EQ(*world.links[0]->send_port(1, 0, 0), *world.links[0]->send_port(1, 2, 0));
  EXPECT_NE(*world.links[0]->send_port(1, 0, 0), *world.links[0]->send_port(1, 1, 0));
}

// Nobody waits for more: a peer that closes its connections in between is no failure.
TEST(TcpLinks, ToleratesACloseBetweenMessages) {
  TcpWorld world(2, 1, 4096, 2);
  SendPort* send = *world.links[0]->send_port(1, 0, 0);
  RecvPort* recv = *world.links[1]->recv_port(0, 0, 0);
  ASSERT_NE(send->acquire(8), nullptr);
  send->commit(8);
  ASSERT_TRUE(world.links[0]->flush(Deadline::after(10)).ok());
  world.links[0].reset();
  ASSERT_TRUE(await_message(*world.links[1], *recv).ok());
  recv->release();
  for (int i = 0; i < 20; ++i) {
    world.links[1]->wait(1'000'000);
    const Status status = world.links[1]->progress();
    EXPECT_TRUE(status.ok()) << status.message();
  }
  // Who waits for one is told.
  const Status failure = await_failure(*world.links[1], *recv);
  EXPECT_EQ(failure.code(), Code::RemoteError);
  EXPECT_NE(failure.message().find("rank 0 (host0)"), std::string::npos) << failure.message();
  EXPECT_NE(failure.message().find("rail 0"), std::string::npos) << failure.message();
}

// A peer that dies in the middle of a message is named, with the rail.
TEST(TcpLinks, NamesAPeerThatDiesWithinAMessage) {
  TcpWorld world(2, 2, 4096, 2);
  RecvPort* recv = *world.links[1]->recv_port(0, 1, 0);
  Socket socket = world.impersonate(0, 1, 1);
  const uint32_t start[2] = {0x4d534854, 100};
  ASSERT_TRUE(socket.send_all(start, sizeof start, Deadline::after(10)).ok());
  socket.close();
  const Status failure = await_failure(*world.links[1], *recv);
  EXPECT_EQ(failure.code(), Code::RemoteError);
  EXPECT_NE(failure.message().find("rank 0 (host0)"), std::string::npos) << failure.message();
  EXPECT_NE(failure.message().find("rail 1"), std::string::npos) << failure.message();
}

// A sender whose receiver is gone gets an error that names it, rather than waiting for ever.
TEST(TcpLinks, NamesAReceiverThatIsGone) {
  constexpr size_t kSlotBytes = 256 << 10;
  TcpWorld world(2, 1, kSlotBytes, 4);
  SendPort* send = *world.links[0]->send_port(1, 0, 0);
  RecvPort* recv = *world.links[1]->recv_port(0, 0, 0);
  ASSERT_NE(send->acquire(8), nullptr);
  send->commit(8);
  ASSERT_TRUE(world.links[0]->flush(Deadline::after(10)).ok());
  ASSERT_TRUE(await_message(*world.links[1], *recv).ok());
  world.links[1].reset();
  Status failure;
  const Deadline deadline = Deadline::after(30);
  while (failure.ok() && !deadline.expired()) {
    if (send->acquire(kSlotBytes) != nullptr) send->commit(kSlotBytes);
    failure = world.links[0]->progress();
  }
  EXPECT_EQ(failure.code(), Code::RemoteError);
  EXPECT_NE(failure.message().find("rank 1 (host1) over rail 0"), std::string::npos) << failure.message();
}

// What is no message is refused with a clear error, not interpreted.
TEST(TcpLinks, RefusesGarbage) {
  TcpWorld world(2, 1, 4096, 2);
  RecvPort* recv = *world.links[1]->recv_port(0, 0, 0);
  Socket socket = world.impersonate(0, 1);
  const std::string garbage(4096, 'x');
  ASSERT_TRUE(socket.send_all(garbage.data(), garbage.size(), Deadline::after(10)).ok());
  const Status failure = await_failure(*world.links[1], *recv);
  EXPECT_EQ(failure.code(), Code::InternalError);
  EXPECT_NE(failure.message().find("rank 0 (host0)"), std::string::npos) << failure.message();
}

// A header that asks for more room than a slot has is garbage too.
TEST(TcpLinks, RefusesMessagesThatAreTooLong) {
  TcpWorld world(2, 1, 4096, 2);
  RecvPort* recv = *world.links[1]->recv_port(0, 0, 0);
  Socket socket = world.impersonate(0, 1);
  uint32_t header[16] = {0x4d534854, 4097};
  ASSERT_TRUE(socket.send_all(header, sizeof header, Deadline::after(10)).ok());
  EXPECT_EQ(await_failure(*world.links[1], *recv).code(), Code::InternalError);
}

// A peer where nobody listens is given up after the heartbeat timeout, by name and address.
TEST(TcpLinks, GivesUpOnAnUnreachablePeer) {
  setenv("THESEUS_HEARTBEAT_TIMEOUT", "0.3", 1);
  reload_settings();
  TcpWorld world(2, 1, 4096, 2);
  // A port that was free a moment ago.
  Result<Socket> listener = Socket::listen(world.nics[0].addresses[0]);
  ASSERT_TRUE(listener.ok());
  world.peers[1].rails[0] = listener->local_address();
  listener->close();
  TcpLinks lonely(world.communicator, 0, world.peers, world.nics, 4096, 2);
  SendPort* send = *lonely.send_port(1, 0, 0);
  ASSERT_NE(send->acquire(8), nullptr);
  send->commit(8);
  const Status failure = lonely.flush(Deadline::after(30));
  unsetenv("THESEUS_HEARTBEAT_TIMEOUT");
  reload_settings();
  EXPECT_EQ(failure.code(), Code::RemoteError);
  EXPECT_NE(failure.message().find(world.peers[1].rails[0].to_string()), std::string::npos) << failure.message();
}

// wait() ends when a first connection comes in, though it was to last for minutes.
TEST(TcpLinks, WakesUpForANewConnection) {
  TcpWorld world(2, 1, 4096, 2);
  RecvPort* recv = *world.links[1]->recv_port(0, 0, 0);
  std::thread sender([&] {
    SendPort* send = *world.links[0]->send_port(1, 0, 0);
    send->acquire(8);
    send->commit(8);
    EXPECT_TRUE(world.links[0]->flush(Deadline::after(10)).ok());
  });
  while (recv->peek() == nullptr) {
    ASSERT_TRUE(world.links[1]->progress().ok());
    world.links[1]->wait(600'000'000'000);  // the runner's own timeout is what fails this test
  }
  sender.join();
}

// Asking for a connection that cannot be is an error, not a crash.
TEST(TcpLinks, RefusesRanksThatAreNot) {
  TcpWorld world(2, 1, 4096, 2);
  EXPECT_TRUE(world.links[0]->empty());
  EXPECT_FALSE(world.links[0]->send_port(2, 0, 0).ok());
  EXPECT_FALSE(world.links[0]->recv_port(0, 0, 0).ok());
  EXPECT_FALSE(world.links[0]->send_port(-1, 0, 0).ok());
  EXPECT_TRUE(world.links[0]->empty());
}

// The flow's counters say how much went to the peer's host over the rail.
TEST(TcpLinks, CountsWhatItHandsOver) {
  TcpWorld world(2, 2, 4096, 2);
  FlowCounters& flow = flow_counters("host1", 1);
  const uint64_t bytes = flow.bytes, messages = flow.messages;
  SendPort* send = *world.links[0]->send_port(1, 1, 0);
  send->acquire(100);
  send->commit(100);
  ASSERT_TRUE(world.links[0]->flush(Deadline::after(10)).ok());
  EXPECT_EQ(flow.bytes - bytes, 164u);
  EXPECT_EQ(flow.messages - messages, 1u);
  EXPECT_EQ(flow.backlogged_ports, 0u);
}

}  // namespace
}  // namespace theseus
