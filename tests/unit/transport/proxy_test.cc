// The proxy between kernels and the rails, with threads that do to its memory what kernels do.
#include "transport/proxy.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "drivers/cuda/emu.h"
#include "tcp_testing.h"

namespace theseus {
namespace {

using testing::TcpWorld;

constexpr uint32_t kSlotBytes = 1 << 10;

cuda::Driver& emulator() {
  static cuda::Emulator& instance = *new cuda::Emulator(cuda::EmulatorOptions{});
  return instance;
}

std::string contents(uint64_t number) {
  return std::string(number % 7 == 0 ? 0 : number * 37 % (kSlotBytes + 1), static_cast<char>('a' + number % 26));
}

// A kernel's side of a link; false: it was told to leave.
class Kernel {
 public:
  Kernel(const device::Link& link, const std::atomic<bool>& abort) : link_(link), abort_(abort) {}

  bool send(const std::string& bytes, uint32_t tag) {
    const uint64_t number = ++link_.messages;
    while (__atomic_load_n(link_.taken, __ATOMIC_ACQUIRE) + link_.slot_count < number) {
      if (!wait()) return false;
    }
    std::memcpy(slot(number), bytes.data(), bytes.size());
    __atomic_store_n(word(number), device::posted_word(number, tag, static_cast<uint32_t>(bytes.size())),
                     __ATOMIC_RELEASE);
    return true;
  }
  bool recv(std::string& bytes, uint32_t& tag) {
    const uint64_t number = ++link_.messages;
    uint64_t posted = 0;
    while ((posted = __atomic_load_n(word(number), __ATOMIC_ACQUIRE)) >> 48 != (number & 0xffff)) {
      if (!wait()) return false;
    }
    bytes.assign(reinterpret_cast<const char*>(slot(number)), static_cast<uint32_t>(posted));
    tag = static_cast<uint32_t>(posted >> 32) & 0xffff;
    __atomic_store_n(link_.taken, number, __ATOMIC_RELEASE);
    return true;
  }

 private:
  bool wait() const {
    std::this_thread::yield();
    return !abort_.load(std::memory_order_relaxed);
  }
  uint8_t* slot(uint64_t number) const { return link_.slots + (number - 1) % link_.slot_count * link_.slot_bytes; }
  device::U64* word(uint64_t number) const { return link_.posted + (number - 1) % link_.slot_count; }

  device::Link link_;
  const std::atomic<bool>& abort_;
};

// Ranks of one communicator, each with a proxy.
class ProxyWorld {
 public:
  ProxyWorld(int ranks, int rails) : world_(ranks, rails, kSlotBytes, 8), failures_(static_cast<size_t>(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      proxies_.push_back(std::make_unique<Proxy>(emulator(), std::move(world_.links[static_cast<size_t>(rank)]),
                                                 kSlotBytes, [this, rank](const Status& why) {
                                                   failures_[static_cast<size_t>(rank)] = why;
                                                   abort_.store(true);
                                                 }));
    }
  }
  ~ProxyWorld() {
    for (auto& proxy : proxies_) {
      if (proxy != nullptr) proxy->stop();
    }
  }

  Proxy& operator[](int rank) { return *proxies_[static_cast<size_t>(rank)]; }
  void drop(int rank) { proxies_[static_cast<size_t>(rank)].reset(); }
  // After stop().
  const Status& failure(int rank) const { return failures_[static_cast<size_t>(rank)]; }
  const TcpWorld& tcp() const { return world_; }

  ProxyEnd* connect(int rank, const Connection& connection) {
    Result<ProxyEnd*> end = (*this)[rank].connect(connection);
    EXPECT_TRUE(end.ok()) << end.status().message();
    return end.ok() ? *end : nullptr;
  }
  Kernel kernel(const ProxyEnd& end) { return {end.link(), abort_}; }

 private:
  TcpWorld world_;
  std::atomic<bool> abort_{false};
  std::vector<Status> failures_;
  std::vector<std::unique_ptr<Proxy>> proxies_;
};

// Messages arrive in order, each with its length and tag, on every rail and channel at once; empty ones too.
TEST(Proxy, MovesMessagesInOrder) {
  constexpr uint64_t kMessages = 300;
  ProxyWorld world(3, 2);
  std::vector<std::thread> kernels;
  std::atomic<int> wrong{0};
  for (int rank = 0; rank < 3; ++rank) {
    for (int16_t rail = 0; rail < 2; ++rail) {
      const int to = (rank + 1) % 3, from = (rank + 2) % 3;
      ProxyEnd* const out = world.connect(rank, {to, /*outgoing=*/true, rail, 3});
      ProxyEnd* const in = world.connect(rank, {from, /*outgoing=*/false, rail, 3});
      world[rank].announce({{out, 1}, {in, 1}}, kMessages);
      kernels.emplace_back([&world, &wrong, out] {
        Kernel kernel = world.kernel(*out);
        for (uint64_t number = 0; number < kMessages; ++number) {
          if (!kernel.send(contents(number), static_cast<uint32_t>(number * 7919))) ++wrong;
        }
      });
      kernels.emplace_back([&world, &wrong, in] {
        Kernel kernel = world.kernel(*in);
        for (uint64_t number = 0; number < kMessages; ++number) {
          std::string bytes;
          uint32_t tag = 0;
          if (!kernel.recv(bytes, tag) || bytes != contents(number) || tag != (number * 7919 & 0xffff)) ++wrong;
        }
      });
    }
  }
  for (std::thread& kernel : kernels) kernel.join();
  EXPECT_EQ(wrong.load(), 0);
  for (int rank = 0; rank < 3; ++rank) {
    const Status flushed = world[rank].flush(Deadline::after(30));
    EXPECT_TRUE(flushed.ok()) << flushed.message();
  }
}

// A sender has room for as much as there are slots though nobody receives; then it waits.
TEST(Proxy, ASenderWaitsForRoom) {
  ProxyWorld world(2, 1);
  ProxyEnd* const out = world.connect(0, {1, true});
  world[0].announce({{out, 1}}, 5000);
  std::atomic<int> sent{0};
  std::thread kernel([&] {
    Kernel kernel = world.kernel(*out);
    while (sent < 5000 && kernel.send(std::string(kSlotBytes, 'x'), 1)) ++sent;
  });
  while (sent < static_cast<int>(ProxyEnd::kSlots) + 8) std::this_thread::yield();
  ProxyEnd* const in = world.connect(1, {0, false});
  world[1].announce({{in, 1}}, 5000);
  Kernel receiver = world.kernel(*in);
  std::string bytes;
  uint32_t tag = 0;
  for (int i = 0; i < 5000 && bytes.size() == (i == 0 ? 0 : kSlotBytes); ++i) {
    if (!receiver.recv(bytes, tag)) break;
  }
  kernel.join();
  EXPECT_EQ(sent.load(), 5000);
}

// A peer that says goodbye when nothing more was announced is no failure; one that does so before is, and is named.
TEST(Proxy, APeerThatLeavesEarlyIsAFailure) {
  ProxyWorld world(2, 1);
  ProxyEnd* const out = world.connect(0, {1, true});
  ProxyEnd* const in = world.connect(1, {0, false});
  world[0].announce({{out, 1}}, 1);
  world[1].announce({{in, 1}}, 1);
  Kernel sender = world.kernel(*out), receiver = world.kernel(*in);
  std::string bytes;
  uint32_t tag = 0;
  EXPECT_TRUE(sender.send("all there is", 5));
  EXPECT_TRUE(receiver.recv(bytes, tag));
  EXPECT_EQ(bytes, "all there is");
  EXPECT_TRUE(world[0].flush(Deadline::after(30)).ok());
  world.drop(0);
  EXPECT_TRUE(world[1].flush(Deadline::after(30)).ok());
  world[1].announce({{in, 1}}, 1);
  EXPECT_FALSE(receiver.recv(bytes, tag));
  world[1].stop();
  EXPECT_EQ(world.failure(1).code(), Code::RemoteError) << world.failure(1).message();
  EXPECT_NE(world.failure(1).message().find("rank 0"), std::string::npos) << world.failure(1).message();
  EXPECT_FALSE(world[1].flush(Deadline::after(30)).ok());
}

// An abort, and an end, do not wait for messages that are outstanding.
TEST(Proxy, AbortEndsWhatIsOutstanding) {
  ProxyWorld world(2, 1);
  ProxyEnd* const in = world.connect(1, {0, false});
  world[1].announce({{in, 1}}, 10);
  world[1].abort();
  EXPECT_EQ(world[1].flush(Deadline::never()).code(), Code::InvalidUsage);
  EXPECT_EQ(world[1].connect({0, true}).status().code(), Code::InvalidUsage);
  ProxyEnd* const out = world.connect(0, {1, true});
  world[0].announce({{out, 1}}, 10);
  world[0].stop();
  EXPECT_TRUE(world.failure(0).ok());
  EXPECT_TRUE(world.failure(1).ok());  // whoever aborts knows
}

// A word that no kernel writes is caught before it is followed.
TEST(Proxy, AMessageLongerThanASlotIsAFailure) {
  ProxyWorld world(2, 1);
  ProxyEnd* const out = world.connect(0, {1, true});
  __atomic_store_n(out->link().posted, device::posted_word(1, 0, kSlotBytes + 16), __ATOMIC_RELEASE);
  world[0].announce({{out, 1}}, 1);
  EXPECT_EQ(world[0].flush(Deadline::never()).code(), Code::InternalError);
}

// Where no connection can be, connect() says so, and the proxy goes on.
TEST(Proxy, RefusesAConnectionToNobody) {
  ProxyWorld world(2, 1);
  EXPECT_EQ(world[0].connect({7, true}).status().code(), Code::InternalError);
  EXPECT_NE(world.connect(0, {1, true}), nullptr);
}

}  // namespace
}  // namespace theseus
