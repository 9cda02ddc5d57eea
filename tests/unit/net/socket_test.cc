// Addresses and sockets: parsing, deadlines, descriptor passing, and errors that name what is wrong.
#include "net/socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "base/random.h"
#include "net/address.h"
#include "net/wire.h"

namespace theseus {
namespace {

TEST(Address, ParsesWhatItPrints) {
  for (const char* text : {"10.0.0.1:80", "127.0.0.1:0", "[::1]:65535", "[fd00::12]:1"}) {
    const auto address = Address::parse(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_EQ(address->to_string(), text);
    EXPECT_EQ(Address::decode(address->encode()).value(), address.value());
  }
  EXPECT_EQ(Address::parse("::1")->to_string(), "[::1]:0");
  EXPECT_EQ(Address::parse("10.0.0.1")->ip_string(), "10.0.0.1");
  EXPECT_EQ(Address::parse("fe80::1%lo")->ip_string(), "fe80::1%lo");
}

TEST(Address, RefusesWhatIsNone) {
  for (const char* text : {"", "eth0", "10.0.0", "10.0.0.256", "10.0.0.1:", "10.0.0.1:65536", "10.0.0.1:-1", "[::1",
                           "[::1]80", "[::1]:x", "::1::2", "fe80::1%nothing", "10.0.0.1%lo", ":80"}) {
    EXPECT_FALSE(Address::parse(text).ok()) << text;
  }
  EXPECT_FALSE(Address::decode("short").ok());
  EXPECT_FALSE(Address::decode(std::string(24, '\x07')).ok());
  EXPECT_FALSE(decode_addresses(std::string(25, '\0')).ok());
  EXPECT_FALSE(decode_addresses(std::string(24 * 65, '\0')).ok());
}

TEST(Address, Subnets) {
  const Address address = Address::parse("10.1.130.7").value();
  EXPECT_TRUE(address.in_subnet(Address::parse("10.1.128.0").value(), 17));
  EXPECT_FALSE(address.in_subnet(Address::parse("10.1.0.0").value(), 17));
  EXPECT_TRUE(address.in_subnet(Address::parse("99.0.0.0").value(), 0));
  EXPECT_FALSE(address.in_subnet(Address::parse("fd00::").value(), 0));
}

TEST(Address, ResolvesNames) {
  const auto found = Address::resolve("localhost:77");
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_TRUE(found->front().is_loopback());
  EXPECT_EQ(found->front().port(), 77);
}

TEST(WireReader, StopsAtTheEnd) {
  WireReader reader(std::string_view("\x05\0\0\0abc", 7));
  EXPECT_EQ(reader.text(), "");
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.number<uint64_t>(), 0u);
  const std::string bytes = WireWriter().number(7).text("abc").take();
  WireReader good(bytes);
  EXPECT_EQ(good.number<int>(), 7);
  EXPECT_EQ(good.text(), "abc");
  EXPECT_TRUE(good.at_end());
}

struct Pair {
  Socket near, far;
};

Pair tcp_pair() {
  auto listener = Socket::listen(Address::loopback(AF_INET, 0));
  EXPECT_TRUE(listener.ok());
  auto near = Socket::connect(listener->local_address(), Deadline::after(20));
  EXPECT_TRUE(near.ok()) << near.status().message();
  auto far = listener->accept(Deadline::after(20));
  EXPECT_TRUE(far.ok()) << far.status().message();
  return {std::move(near).value(), std::move(far).value()};
}

TEST(Socket, CarriesMoreThanItsBuffersHold) {
  Pair pair = tcp_pair();
  pair.near.set_data_options(64 * 1024);
  std::string sent(8 << 20, '\0');
  fill_random(sent.data(), sent.size());
  std::thread sender([&] { EXPECT_TRUE(pair.near.send_all(sent.data(), sent.size(), Deadline::after(60)).ok()); });
  std::string received(sent.size(), '\0');
  EXPECT_TRUE(pair.far.recv_all(received.data(), received.size(), Deadline::after(60)).ok());
  sender.join();
  EXPECT_TRUE(sent == received);
}

TEST(Socket, DeadlinesAndClosedPeersAreDifferentErrors) {
  Pair pair = tcp_pair();
  char byte;
  EXPECT_EQ(pair.near.recv_all(&byte, 1, Deadline::after(0.02)).code(), Code::Timeout);
  std::atomic<bool> cancel{true};
  EXPECT_EQ(pair.near.recv_all(&byte, 1, Deadline::never().with_cancel(&cancel)).code(), Code::InvalidUsage);
  pair.far.close();
  EXPECT_EQ(pair.near.recv_all(&byte, 1, Deadline::after(20)).code(), Code::RemoteError);
}

TEST(Socket, ARefusedConnectionNamesTheAddress) {
  auto listener = Socket::listen(Address::loopback(AF_INET, 0));
  const Address address = listener->local_address();
  listener->close();
  const Status status = Socket::connect(address, Deadline::after(20)).status();
  EXPECT_EQ(status.code(), Code::RemoteError);
  EXPECT_NE(status.message().find(address.to_string()), std::string::npos) << status.message();
}

TEST(Socket, ConnectAnyTakesTheAddressThatAnswers) {
  auto listener = Socket::listen(Address::loopback(AF_INET, 0));
  auto closed = Socket::listen(Address::loopback(AF_INET, 0));
  const Address dead = closed->local_address();
  closed->close();
  EXPECT_TRUE(Socket::connect_any({dead, listener->local_address()}, Deadline::after(20)).ok());
  EXPECT_FALSE(Socket::connect_any({}, Deadline::after(20)).ok());
}

TEST(Socket, BindsToTheSourceAddress) {
  auto listener = Socket::listen(Address::any(AF_INET, 0));
  const Address to = Address::loopback(AF_INET, listener->local_address().port());
  auto socket = Socket::connect(to, Deadline::after(20), Address::parse("127.0.0.5").value());
  ASSERT_TRUE(socket.ok()) << socket.status().message();
  EXPECT_EQ(socket->local_address().ip_string(), "127.0.0.5");
  EXPECT_FALSE(Socket::connect(to, Deadline::after(20), Address::parse("203.0.113.9").value()).ok());
}

TEST(Socket, PassesDescriptorsOverUnixSockets) {
  const std::string name = "theseus-test-" + std::to_string(random_u64());
  auto listener = Socket::listen_unix(name);
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  auto near = Socket::connect_unix(name, Deadline::after(20));
  ASSERT_TRUE(near.ok());
  auto far = listener->accept(Deadline::after(20));
  ASSERT_TRUE(far.ok());
  EXPECT_TRUE(far->peer_is_same_user());

  Fd memory(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(write(memory.get(), "hello", 5), 5);
  ASSERT_TRUE(near->send_descriptor(memory.get(), "note", 4, Deadline::after(20)).ok());
  ASSERT_TRUE(near->send_all("more", 4, Deadline::after(20)).ok());
  char note[4];
  auto received = far->recv_descriptor(note, 4, Deadline::after(20));
  ASSERT_TRUE(received.ok()) << received.status().message();
  EXPECT_EQ(std::string(note, 4), "note");
  char text[5];
  EXPECT_EQ(pread(received->get(), text, 5, 0), 5);
  EXPECT_EQ(std::string(text, 5), "hello");
  EXPECT_NE(fcntl(received->get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(far->recv_descriptor(note, 4, Deadline::after(20)).status().code(),
            Code::RemoteError);  // bytes, but no descriptor
}

TEST(Socket, TooFewDescriptorsNamesTheLimit) {
  rlimit before;
  getrlimit(RLIMIT_NOFILE, &before);
  std::vector<Socket> sockets;
  const rlimit small{32, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &small);
  Status status;
  for (int i = 0; i < 64 && status.ok(); ++i) {
    auto socket = Socket::listen(Address::loopback(AF_INET, 0));
    status = socket.status();
    if (socket.ok()) sockets.push_back(std::move(socket).value());
  }
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(status.code(), Code::SystemError);
  EXPECT_NE(status.message().find("limit allows, 32"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("ulimit -n"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace theseus
