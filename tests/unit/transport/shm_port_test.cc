#include "transport/shm_port.h"

#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "transport/shared_memory.h"
#include "unit/transport/shm_testing.h"

namespace theseus {
namespace {

using testing::geometry_of;
using testing::make_segments;

constexpr size_t kSlotBytes = 4096;

SignatureTag tag_of(uint64_t count, uint32_t request) {
  SignatureTag tag;
  tag.signature.count = count;
  tag.signature.request = request;
  tag.base = base_hash(tag.signature);
  tag.hash = request_hash(tag.base, request);
  return tag;
}

// A connection from local rank 0 to local rank 1.
struct Connection {
  explicit Connection(int slots = kMaxSlots, const ReferencePolicy& policy = {}, int channel = 0)
      : segments(make_segments(geometry_of(2, slots, kSlotBytes))),
        send(*segments[0], channel, 0, 1, policy),
        recv(*segments[1], channel, 0, 1) {
    send.set_tag(tag);
  }

  // False while all slots are taken.
  bool post(const std::vector<uint8_t>& bytes) {
    void* slot = send.acquire(bytes.size());
    if (slot == nullptr) return false;
    if (!bytes.empty()) std::memcpy(slot, bytes.data(), bytes.size());
    send.commit(bytes.size());
    return true;
  }

  SignatureTag tag = tag_of(5, 3);
  std::vector<std::unique_ptr<Segment>> segments;
  ShmSendPort send;
  ShmRecvPort recv;
};

// What message `index` is made of; both ends work it out for themselves.
std::vector<uint8_t> contents(uint64_t index) {
  std::mt19937_64 random(index);
  const size_t edges[] = {0,         1, kInlineBytes - 1, kInlineBytes, kInlineBytes + 1, kCellBytes, kCellBytes + 1,
                          kSlotBytes};
  std::vector<uint8_t> bytes(random() % 2 == 0 ? edges[random() % 7] : random() % (kSlotBytes + 1));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

bool equals(const Message& message, const std::vector<uint8_t>& bytes) {
  return message.bytes == bytes.size() && (bytes.empty() || std::memcmp(message.data, bytes.data(), bytes.size()) == 0);
}

// Receives `messages` messages, asleep while there is none; the index of the first wrong one, or `messages`.
uint64_t receive_all(Segment& segment, ShmRecvPort& port, uint64_t messages) {
  for (uint64_t index = 0; index < messages; ++index) {
    while (port.peek() == nullptr) sleep_on(segment.rank_page(1), [&] { return port.peek() != nullptr; });
    if (!equals(*port.peek(), contents(index))) return index;
    port.release();
  }
  return messages;
}

void send_all(Connection& connection, uint64_t messages) {
  RankPage& page = connection.segments[0]->rank_page(0);
  for (uint64_t index = 0; index < messages; ++index) {
    const auto post = [&] { return connection.post(contents(index)); };
    while (!post()) {
      bool posted = false;
      sleep_on(page, [&] { return posted = post(); });
      if (posted) break;
    }
  }
}

class ShmPort : public ::testing::TestWithParam<int> {};

// Between threads, messages of any size arrive once each, in order and whole, however often the slots wrap around.
TEST_P(ShmPort, ArrivesInOrderAndWholeBetweenThreads) {
  constexpr uint64_t kMessages = 3000;
  Connection connection(GetParam());
  uint64_t good = 0;
  std::thread receiver([&] { good = receive_all(*connection.segments[1], connection.recv, kMessages); });
  send_all(connection, kMessages);
  receiver.join();
  EXPECT_EQ(good, kMessages);
  EXPECT_EQ(connection.send.posted(), kMessages);
  EXPECT_EQ(connection.recv.peek(), nullptr);
  EXPECT_EQ(connection.send.released(), kMessages);
}

// The same between processes, where the receiver maps the segment by itself.
TEST_P(ShmPort, ArrivesInOrderAndWholeBetweenProcesses) {
  constexpr uint64_t kMessages = 3000;
  Connection connection(GetParam());
  const pid_t child = fork();
  if (child == 0) {
    Result<std::unique_ptr<Segment>> segment =
        Segment::attach(dup(connection.segments[0]->fd()), connection.segments[0]->geometry());
    if (!segment.ok()) _exit(2);
    ShmRecvPort port(**segment, 0, 0, 1);
    _exit(receive_all(**segment, port, kMessages) == kMessages ? 0 : 1);
  }
  send_all(connection, kMessages);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// Fills a connection with messages of `bytes`: it takes exactly `room` before the receiver has released any. A release
// frees room at the latest when half of it has been released, or when the receiver looks for a message in vain.
void expect_room(Connection& connection, size_t bytes, int room) {
  const std::vector<uint8_t> message(bytes, 1);
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < room; ++i) EXPECT_TRUE(connection.post(message)) << i;
    EXPECT_FALSE(connection.post(message));
    ASSERT_NE(connection.recv.peek(), nullptr);
    EXPECT_FALSE(connection.post(message)) << "looking at a message does not make room";
    for (int i = 0; i < std::max(1, room / 2); ++i) {
      ASSERT_NE(connection.recv.peek(), nullptr);
      connection.recv.release();
    }
    EXPECT_TRUE(connection.post(message));
    while (connection.recv.peek() != nullptr) connection.recv.release();
  }
}

// Long messages need a slot each, shorter ones a cell, the shortest only a line.
TEST_P(ShmPort, HoldsAsManyMessagesAsItHasPlaces) {
  Connection connection(GetParam());
  ASSERT_EQ(connection.send.slots(), GetParam());
  expect_room(connection, kCellBytes + 1, GetParam());
  expect_room(connection, kInlineBytes + 1, kCells);
  expect_room(connection, 1, kLines);
}

INSTANTIATE_TEST_SUITE_P(Slots, ShmPort, ::testing::Values(2, 3, kMaxSlots));

// A message is there once it is committed and not before; peeking again shows the same one.
TEST(ShmConnection, ShowsNothingBeforeCommit) {
  Connection connection;
  void* slot = connection.send.acquire(100);
  std::memset(slot, 7, 100);
  EXPECT_EQ(connection.recv.peek(), nullptr);
  connection.send.commit(100);
  const Message* message = connection.recv.peek();
  ASSERT_NE(message, nullptr);
  EXPECT_EQ(connection.recv.peek(), message);
  EXPECT_TRUE(equals(*message, std::vector<uint8_t>(100, 7)));
  connection.recv.release();
  EXPECT_EQ(connection.recv.peek(), nullptr);
}

// Small messages travel beside their flag, in one cache line; larger ones in a cell, if they fit, else in a slot.
TEST(ShmConnection, PutsSmallMessagesBesideTheirFlag) {
  Connection connection;
  const Segment& segment = *connection.segments[1];
  const std::pair<size_t, const void*> expected[] = {
      {kInlineBytes, segment.control(0, 0, 1).lines[0].payload},
      {kInlineBytes + 1, segment.cell(0, 0, 1, 0)},
      {kCellBytes, segment.cell(0, 0, 1, 1)},
      {kCellBytes + 1, segment.slot(0, 0, 1, 0)},
  };
  for (const auto& [bytes, place] : expected) {
    ASSERT_TRUE(connection.post(std::vector<uint8_t>(bytes, 1)));
    EXPECT_EQ(connection.recv.peek()->data, place) << bytes;
    connection.recv.release();
  }
}

// Channels, and the two directions of a pair, are connections of their own.
TEST(ShmConnection, ChannelsAndDirectionsAreApart) {
  Connection connection;
  ShmSendPort other_channel(*connection.segments[0], 1, 0, 1, {});
  ShmSendPort other_way(*connection.segments[1], 0, 1, 0, {});
  ShmRecvPort on_channel(*connection.segments[1], 1, 0, 1);
  ShmRecvPort back(*connection.segments[0], 0, 1, 0);
  const SignatureTag tag = tag_of(1, 1);
  for (SendPort* port : {static_cast<SendPort*>(&other_channel), static_cast<SendPort*>(&other_way)}) {
    port->set_tag(tag);
    *static_cast<uint8_t*>(port->acquire(1)) = port == &other_channel ? 11 : 12;
    port->commit(1);
  }
  EXPECT_EQ(connection.recv.peek(), nullptr);
  ASSERT_NE(on_channel.peek(), nullptr);
  ASSERT_NE(back.peek(), nullptr);
  EXPECT_EQ(*static_cast<const uint8_t*>(on_channel.peek()->data), 11);
  EXPECT_EQ(*static_cast<const uint8_t*>(back.peek()->data), 12);
}

// What one port has in a slot, another can publish again, unless it lies in a further channel's own mapping.
TEST(ShmConnection, SharesSlotsOfTheFirstChannelsOnly) {
  Connection connection;
  Segment& segment = *connection.segments[0];
  ASSERT_TRUE(segment.open_channel(kShmChannels).ok());
  ShmSendPort further(segment, kShmChannels, 0, 1, {});
  const SignatureTag tag = tag_of(1, 1);
  further.set_tag(tag);
  ASSERT_NE(further.acquire(kCellBytes + 1), nullptr);
  further.commit(kCellBytes + 1);
  ASSERT_TRUE(connection.post(std::vector<uint8_t>(kCellBytes + 1, 1)));
  EXPECT_TRUE(connection.send.can_share(connection.send, connection.send.posted()));
  EXPECT_FALSE(connection.send.can_share(connection.send, connection.send.posted() + 1));
  EXPECT_FALSE(connection.send.can_share(further, further.posted()));
  EXPECT_FALSE(further.can_share(further, further.posted()));
}

// In one process a reference is the sender's own pointer, of any size, and is done when the receiver has released it.
TEST(ShmConnection, PassesPointersInsideAProcess) {
  Connection connection(2, {.same_process = true});
  std::vector<uint8_t> buffer(10 * kSlotBytes, 5);
  ASSERT_TRUE(connection.send.can_reference(buffer.data(), buffer.size(), buffer.size()));
  ASSERT_TRUE(connection.send.post_reference(buffer.data(), buffer.size()));
  const uint64_t ticket = connection.send.posted();
  for (uint32_t line = 1; line < kLines; ++line) ASSERT_TRUE(connection.send.post_reference(buffer.data(), 0));
  EXPECT_FALSE(connection.send.post_reference(buffer.data(), 1)) << "all lines are taken";
  const Message* message = connection.recv.peek();
  ASSERT_NE(message, nullptr);
  EXPECT_EQ(message->kind, MessageKind::Referenced);
  EXPECT_EQ(message->data, buffer.data());
  EXPECT_EQ(message->bytes, buffer.size());
  EXPECT_LT(connection.send.released(), ticket);
  connection.recv.release();
  EXPECT_EQ(connection.send.released(), ticket);
}

// References to shared allocations are mapped by the receiver; where that fails, it reads the sender's memory instead.
TEST(ShmConnection, PassesSharedAllocations) {
  Connection connection(kMaxSlots, {.shared_memory = true});
  Result<void*> memory = SharedMemory::allocate(8192);
  ASSERT_TRUE(memory.ok());
  auto* buffer = static_cast<uint8_t*>(*memory);
  std::memset(buffer, 9, 8192);
  std::vector<uint8_t> ordinary(8192);
  EXPECT_TRUE(connection.send.can_reference(buffer + 1, 8191, 8191));
  EXPECT_FALSE(connection.send.can_reference(buffer + 1, 8192, 8192)) << "a byte beyond its end";
  EXPECT_FALSE(connection.send.can_reference(ordinary.data(), ordinary.size(), ordinary.size()));

  SharedMemory::set_fetch([](uint64_t id) { return SharedMemory::descriptor(id); });
  ASSERT_TRUE(connection.send.post_reference(buffer + 1, 8000));
  const Message* message = connection.recv.peek();
  ASSERT_NE(message, nullptr);
  EXPECT_EQ(message->kind, MessageKind::Referenced);
  ASSERT_NE(message->data, nullptr);
  EXPECT_NE(message->data, buffer + 1) << "a mapping of the receiver's own";
  EXPECT_TRUE(equals(*message, std::vector<uint8_t>(8000, 9)));
  connection.recv.release();
  ASSERT_TRUE(SharedMemory::free(buffer).ok());

  Result<void*> unreachable = SharedMemory::allocate(4096);
  ASSERT_TRUE(unreachable.ok());
  SharedMemory::set_fetch([](uint64_t) { return -1; });
  ASSERT_TRUE(connection.send.post_reference(*unreachable, 4096));
  message = connection.recv.peek();
  ASSERT_NE(message, nullptr);
  EXPECT_EQ(message->kind, MessageKind::Remote);
  EXPECT_EQ(message->data, nullptr);
  connection.recv.release();
  SharedMemory::set_fetch(nullptr);
  ASSERT_TRUE(SharedMemory::free(*unreachable).ok());
}

// Private memory of another process is fetched, any part of it; how much pays is the policy's.
TEST(ShmConnection, FetchesPrivateMemory) {
  Connection connection(kMaxSlots, {.cross_memory = true, .smallest_remote = 100, .largest_remote = 5000});
  std::vector<uint8_t> buffer(4000);
  for (size_t i = 0; i < buffer.size(); ++i) buffer[i] = static_cast<uint8_t>(i * 31);
  EXPECT_TRUE(connection.send.can_reference(buffer.data(), 100, 5000));
  EXPECT_FALSE(connection.send.can_reference(buffer.data(), 99, 5000));
  EXPECT_FALSE(connection.send.can_reference(buffer.data(), 100, 5001));
  ASSERT_TRUE(connection.send.post_reference(buffer.data(), buffer.size()));
  const Message* message = connection.recv.peek();
  ASSERT_NE(message, nullptr);
  ASSERT_EQ(message->kind, MessageKind::Remote);
  ASSERT_EQ(message->bytes, buffer.size());
  std::vector<uint8_t> whole(buffer.size()), part(500);
  const Status fetched = connection.recv.fetch(whole.data(), 0, whole.size());
  if (!fetched.ok()) GTEST_SKIP() << fetched.message();
  EXPECT_EQ(whole, buffer);
  ASSERT_TRUE(connection.recv.fetch(part.data(), 1000, part.size()).ok());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), buffer.begin() + 1000));
  connection.recv.release();
}

// A process that is gone cannot be read, and the error names it.
TEST(ShmConnection, NamesTheProcessThatCannotBeRead) {
  Connection connection(kMaxSlots, {.cross_memory = true, .largest_remote = SIZE_MAX});
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  connection.segments[0]->rank_page(0).pid = child;
  uint8_t byte = 0;
  ASSERT_TRUE(connection.send.post_reference(&byte, 1));
  ASSERT_NE(connection.recv.peek(), nullptr);
  const Status fetched = connection.recv.fetch(&byte, 0, 1);
  ASSERT_FALSE(fetched.ok());
  EXPECT_NE(fetched.message().find(std::to_string(child)), std::string::npos) << fetched.message();
}

// The receiver can name the request that each message was sent under, whatever came through its slot before.
TEST(ShmConnection, NamesTheSendersRequest) {
  Connection connection(2);
  for (uint32_t round = 0; round < 12; ++round) {
    const SignatureTag tag = tag_of(round / 3, round * 1000);
    connection.send.set_tag(tag);
    ASSERT_TRUE(connection.post({1}));
    ASSERT_NE(connection.recv.peek(), nullptr);
    EXPECT_EQ(connection.recv.peek()->signature_hash, tag.hash);
    EXPECT_EQ(connection.recv.peer_signature(), tag.signature);
    connection.recv.release();
  }
}

// Messages sent under different requests keep their own tags while they wait together.
TEST(ShmConnection, KeepsTheTagsOfWaitingMessages) {
  Connection connection;
  const SignatureTag first = tag_of(10, 1), second = tag_of(20, 2);
  connection.send.set_tag(first);
  ASSERT_TRUE(connection.post({1}));
  connection.send.set_tag(second);
  ASSERT_TRUE(connection.post({2}));
  ASSERT_NE(connection.recv.peek(), nullptr);
  EXPECT_EQ(connection.recv.peer_signature(), first.signature);
  connection.recv.release();
  ASSERT_NE(connection.recv.peek(), nullptr);
  EXPECT_EQ(connection.recv.peer_signature(), second.signature);
  connection.recv.release();
}

// Whoever goes to sleep says so first, then looks once more; a waker rings the doorbell of sleepers only.
TEST(Doorbell, IsArmedBeforeTheLastLook) {
  std::vector<std::unique_ptr<Segment>> segments = make_segments(geometry_of(2));
  RankPage& page = segments[0]->rank_page(0);
  ring(page);
  EXPECT_EQ(page.doorbell.load(), 0u) << "nobody sleeps";
  bool looked = false;
  sleep_on(page, [&] {
    looked = true;
    EXPECT_EQ(page.sleeping.load(), 1u);
    ring(segments[1]->rank_page(0));
    EXPECT_EQ(page.doorbell.load(), 1u);
    return true;
  });
  EXPECT_TRUE(looked);
  EXPECT_EQ(page.sleeping.load(), 0u);
}

// Committing and releasing ring the other end, each its own.
TEST(Doorbell, RingsTheOtherEnd) {
  Connection connection;
  RankPage& sender = connection.segments[0]->rank_page(0);
  RankPage& receiver = connection.segments[0]->rank_page(1);
  sender.sleeping = 1;
  receiver.sleeping = 1;
  ASSERT_TRUE(connection.post({1}));
  EXPECT_EQ(receiver.doorbell.load(), 1u);
  EXPECT_EQ(sender.doorbell.load(), 0u);
  ASSERT_NE(connection.recv.peek(), nullptr);
  connection.recv.release();
  EXPECT_EQ(connection.recv.peek(), nullptr);
  EXPECT_EQ(sender.doorbell.load(), 1u);
  EXPECT_EQ(receiver.doorbell.load(), 1u);
}

}  // namespace
}  // namespace theseus
