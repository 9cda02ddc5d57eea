// First aid: whatever rails do, messages arrive once each, in order and whole, as long as one rail works.
#include "transport/tcp_aid.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/env.h"
#include "tcp_testing.h"
#include "transport/flow_counters.h"
#include "transport/pacing.h"

namespace theseus {
namespace {

using State = LaneHealth::State;

constexpr uint64_t kRate = 25'000'000;
constexpr uint64_t kMillisecond = 1'000'000;

// --- The judgement alone, on a clock of its own.

// Feeds `milliseconds` of a lane that moves `rate` bytes per second with data always waiting.
void feed(LaneHealth& lane, uint64_t& now, uint64_t& acknowledged, double rate, int milliseconds) {
  for (int i = 0; i < milliseconds; ++i) {
    now += kMillisecond;
    acknowledged += static_cast<uint64_t>(rate / 1000);
    lane.measure(now, acknowledged, acknowledged, 1 << 20, 0, true);
  }
}

TEST(LaneHealth, ComparesWithTheBestOther) {
  struct Case {
    double part;
    State state;
  };
  for (const Case& one : {Case{1.0, State::Good}, {0.5, State::Good}, {0.3, State::Slow}, {0.1, State::Bad}}) {
    LaneHealth lane;
    uint64_t now = 1, acknowledged = 0;
    State state = State::Good;
    for (int window = 0; window < 4; ++window) {
      feed(lane, now, acknowledged, one.part * kRate, 21);
      state = lane.compare(kRate);
    }
    EXPECT_EQ(state, one.state) << one.part;
  }
}

// One bad window, say because this process was not scheduled, changes nothing.
TEST(LaneHealth, ForgivesASingleWindow) {
  LaneHealth lane;
  uint64_t now = 1, acknowledged = 0;
  for (int window = 0; window < 6; ++window) {
    feed(lane, now, acknowledged, window == 3 ? 0 : kRate, 21);
    EXPECT_EQ(lane.compare(kRate), State::Good) << window;
  }
}

// A lane that has nothing to do never stands still, however long, nor one that has only just got something; one whose
// bytes are not acknowledged does.
TEST(LaneHealth, StandsStillOnlyWithSomethingUnderWay) {
  LaneHealth lane;
  uint64_t now = 1000 * kMillisecond;
  lane.measure(now, 100, 100, 0, 0, false);
  now += 10'000 * kMillisecond;
  lane.measure(now, 100, 100, 0, 0, false);
  EXPECT_EQ(lane.standstill_ns(now), 0u);
  now += 700 * kMillisecond;
  lane.measure(now, 100, 100, 5, 0, false);
  EXPECT_EQ(lane.standstill_ns(now), 0u) << "nobody looked while it had nothing to do";
  lane.measure(now + 60 * kMillisecond, 100, 100, 5, 0, false);
  EXPECT_EQ(lane.standstill_ns(now + 60 * kMillisecond), 60 * kMillisecond);
  EXPECT_EQ(lane.rate(), 0) << "no data has waited";
}

// Time in which the receiver has no room says nothing about the network.
TEST(LaneHealth, LeavesOutTheReceiversPauses) {
  LaneHealth lane;
  uint64_t now = 1, acknowledged = 0;
  feed(lane, now, acknowledged, kRate, 15);
  lane.measure(now += 500 * kMillisecond, acknowledged, acknowledged, 1 << 20, 500 * kMillisecond, true);
  for (int i = 0; i < 6; ++i) {
    acknowledged += kRate / 1000;
    lane.measure(now += kMillisecond, acknowledged, acknowledged, 1 << 20, 500 * kMillisecond, true);
  }
  EXPECT_NEAR(lane.rate(), kRate, 0.1 * kRate);
}

// --- Connections, over virtual NICs that a test makes slow.

constexpr size_t kSlotBytes = 32 << 10;

std::vector<uint8_t> contents(uint64_t stream, uint64_t index) {
  std::mt19937_64 random(stream * 1'000'003 + index);
  const size_t size = random() % 3 == 0 ? random() % 64 : random() % (kSlotBytes + 1);
  std::vector<uint8_t> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<uint8_t>(stream + index + i * 7);
  return bytes;
}

class AidWorld {
 public:
  // Returns when so many messages have been received.
  using Await = std::function<void(uint64_t count)>;

  explicit AidWorld(int rails, int channels, const char* rate = "200Mbit") : rails_(rails), channels_(channels) {
    setenv("THESEUS_HOST", ("aid-test-" + random_id().to_string()).c_str(), 1);
    setenv("THESEUS_NIC_RATE", rate, 1);
    reload_settings();
    world_ = std::make_unique<testing::TcpWorld>(2, rails, kSlotBytes, 8);
    Result<Pacing*> pacing = Pacing::for_this_host();
    EXPECT_TRUE(pacing.ok());
    pacing_ = *pacing;
  }
  ~AidWorld() {
    world_.reset();
    unsetenv("THESEUS_HOST");
    unsetenv("THESEUS_NIC_RATE");
    reload_settings();
  }

  // Both ranks send `messages` on every connection, and check what they get. `disturb` runs beside it.
  void exchange(uint64_t messages, const std::function<void(const Await&)>& disturb) {
    std::atomic<uint64_t> received{0};
    std::string problem[2];
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        problem[rank] = run(rank, messages, received);
        if (!problem[rank].empty()) failed_ = true;
      });
    }
    disturb([&](uint64_t count) {
      while (received < count && !failed_) std::this_thread::yield();  // the runner's own timeout fails this test
    });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(problem[0], "");
    EXPECT_EQ(problem[1], "");
    first_ += messages;
  }

  Pacing& pacing() { return *pacing_; }
  testing::TcpWorld& world() { return *world_; }

 private:
  std::string run(int rank, uint64_t messages, std::atomic<uint64_t>& received) {
    TcpLinks& links = *world_->links[static_cast<size_t>(rank)];
    const SignatureTag tag = testing::tag_of(7, 3);
    struct Lane {
      SendPort* send;
      RecvPort* recv;
      uint64_t sent, got, id;
    };
    std::vector<Lane> lanes;
    for (int rail = 0; rail < rails_; ++rail) {
      for (int channel = 0; channel < channels_; ++channel) {
        Lane& lane = lanes.emplace_back();
        lane = {*links.send_port(1 - rank, rail, channel), *links.recv_port(1 - rank, rail, channel), 0, 0,
                static_cast<uint64_t>(rail * channels_ + channel) * 2};
        lane.send->set_tag(tag);
      }
    }
    size_t unfinished = 2 * lanes.size();
    while (unfinished > 0) {
      bool moved = false;
      for (Lane& lane : lanes) {
        if (lane.sent < messages) {
          const std::vector<uint8_t> bytes = contents(lane.id + static_cast<uint64_t>(rank), first_ + lane.sent);
          if (void* slot = lane.send->acquire(bytes.size()); slot != nullptr) {
            if (!bytes.empty()) std::memcpy(slot, bytes.data(), bytes.size());
            lane.send->commit(bytes.size());
            moved = true;
            if (++lane.sent == messages) --unfinished;
          }
        }
        if (const Message* message = lane.got < messages ? lane.recv->peek() : nullptr; message != nullptr) {
          const std::vector<uint8_t> bytes = contents(lane.id + static_cast<uint64_t>(1 - rank), first_ + lane.got);
          if (message->bytes != bytes.size() || message->signature_hash != tag.hash ||
              (!bytes.empty() && std::memcmp(message->data, bytes.data(), bytes.size()) != 0)) {
            return "rank " + std::to_string(rank) + ": message " + std::to_string(lane.got) + " of connection " +
                   std::to_string(lane.id) + " differs";
          }
          lane.recv->release();
          ++received;
          moved = true;
          if (++lane.got == messages) --unfinished;
        }
      }
      if (const Status status = links.progress(); !status.ok()) return status.message();
      if (failed_) return "the other rank failed";
      if (!moved) links.wait(1'000'000);
    }
    return links.flush(Deadline::after(60)).message();
  }

  const int rails_;
  const int channels_;
  uint64_t first_ = 0;
  std::atomic<bool> failed_{false};
  std::unique_ptr<testing::TcpWorld> world_;
  Pacing* pacing_ = nullptr;
};

uint64_t rescued_on(int rail) {
  return flow_counters("host0", rail).rescued_messages + flow_counters("host1", rail).rescued_messages;
}

// A NIC that dies in the middle of a request, or is dead when the next begins, holds nothing up, and everything still
// arrives once, in order.
TEST(TcpAid, GoesRoundADeadNic) {
  AidWorld world(4, 1);
  const uint64_t before = rescued_on(2);
  world.exchange(60, [&](const AidWorld::Await& await) {
    await(40);
    world.pacing().set_rate(2, 1);
  });
  EXPECT_GT(rescued_on(2), before);
  world.exchange(60, [](const AidWorld::Await&) {});
}

// The same where the peer's end of the rail is dead: this NIC takes no more than its socket holds.
TEST(TcpAid, GoesRoundADeadNicOfThePeer) {
  AidWorld world(3, 2);
  world.exchange(40, [&](const AidWorld::Await& await) {
    await(40);
    world.pacing().set_rate(0, 1, Direction::Ingress);
  });
  world.exchange(40, [](const AidWorld::Await&) {});
}

// A NIC at a tenth of its speed carries less; when it is whole again it carries its own messages once more.
TEST(TcpAid, TrustsAMendedNicAgain) {
  AidWorld world(3, 1);
  world.exchange(60, [&](const AidWorld::Await& await) {
    await(20);
    world.pacing().set_rate(1, kRate / 10);
  });
  world.pacing().set_rate(1, kRate);
  FlowCounters& there = flow_counters("host1", 1);
  for (uint64_t avoided = 1; avoided != 0;) {  // the runner's own timeout is what fails this test
    world.exchange(40, [](const AidWorld::Await&) {});
    avoided = there.suspect + flow_counters("host0", 1).suspect;
  }
  const uint64_t bytes = there.bytes;
  world.exchange(40, [](const AidWorld::Await&) {});
  EXPECT_GT(there.bytes, bytes);
}

// A rail that was bad, and that nobody used since, counts as sound: no trial is needed, and none could be.
TEST(TcpAid, ForgetsWhatIsOld) {
  AidWorld world(3, 1);
  const auto avoided = [] { return flow_counters("host0", 1).suspect + flow_counters("host1", 1).suspect; };
  while (avoided() == 0) {  // the runner's own timeout is what fails this test
    world.exchange(60, [&](const AidWorld::Await& await) {
      await(20);
      world.pacing().set_rate(1, kRate / 20);
    });
  }
  world.pacing().set_rate(1, kRate);
  world.exchange(1, [](const AidWorld::Await&) {});  // what was under way arrives
  std::this_thread::sleep_for(std::chrono::seconds(4));
  world.exchange(20, [](const AidWorld::Await&) {});
  EXPECT_EQ(avoided(), 0);
}

// Breaks every connection that leaves over the rail's address, as a NIC that goes down for long does.
int break_connections(int rail) {
  int broken = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(directory)) {
    const int fd = atoi(entry->d_name);
    sockaddr_in own{}, peer{};
    socklen_t own_length = sizeof own, peer_length = sizeof peer;
    if (fd <= 2 || syscall(SYS_getsockname, fd, &own, &own_length) != 0 || own.sin_family != AF_INET ||
        syscall(SYS_getpeername, fd, &peer, &peer_length) != 0 ||
        ntohl(own.sin_addr.s_addr) != INADDR_LOOPBACK + static_cast<uint32_t>(rail)) {
      continue;
    }
    sockaddr reset{};
    reset.sa_family = AF_UNSPEC;
    // Not connect(): ThreadSanitizer takes a foreign thread's use of a descriptor for a race.
    if (syscall(SYS_connect, fd, &reset, sizeof reset) == 0) ++broken;
  }
  closedir(directory);
  return broken;
}

// Connections of one rail that break are no failure while another rail lives.
TEST(TcpAid, SurvivesBrokenConnections) {
  AidWorld world(3, 1);
  world.exchange(80, [&](const AidWorld::Await& await) {
    await(60);
    EXPECT_GT(break_connections(1), 0);
  });
  world.exchange(40, [](const AidWorld::Await&) {});
}

// With the last rail the peer is lost, and named.
TEST(TcpAid, FailsWithTheLastRail) {
  AidWorld world(2, 1);
  world.exchange(10, [](const AidWorld::Await&) {});
  EXPECT_GT(break_connections(0), 0);
  EXPECT_GT(break_connections(1), 0);
  SendPort* send = *world.world().links[0]->send_port(1, 0, 0);
  Status failure;
  while (failure.ok()) {  // the runner's own timeout is what fails this test
    if (send->acquire(kSlotBytes) != nullptr) send->commit(kSlotBytes);
    failure = world.world().links[0]->progress();
  }
  EXPECT_EQ(failure.code(), Code::RemoteError);
  EXPECT_NE(failure.message().find("rank 1 (host1) over rail"), std::string::npos) << failure.message();
}

// A peer that is gone is one whose every connection ends: who waits for it is told.
TEST(TcpAid, ToldOfAPeerThatIsGone) {
  AidWorld world(3, 1);
  world.exchange(10, [](const AidWorld::Await&) {});
  world.world().links[0].reset();
  RecvPort* recv = *world.world().links[1]->recv_port(0, 1, 0);
  const Status failure = testing::await_failure(*world.world().links[1], *recv);
  EXPECT_EQ(failure.code(), Code::RemoteError);
  EXPECT_NE(failure.message().find("rank 0 (host0)"), std::string::npos) << failure.message();
}

// Whatever happens to all but one rail, in whatever order.
class TcpAidProperty : public ::testing::TestWithParam<uint64_t> {};

TEST_P(TcpAidProperty, LosesNothing) {
  std::mt19937_64 random(GetParam());
  const int rails = 2 + static_cast<int>(random() % 3);
  AidWorld world(rails, 1 + static_cast<int>(random() % 2));
  const int spared = static_cast<int>(random() % static_cast<uint64_t>(rails));
  for (int round = 0; round < 3; ++round) {
    const uint64_t messages = 10 + random() % 40;
    world.exchange(messages, [&](const AidWorld::Await& await) {
      for (uint64_t at = 0; at < messages; at += 1 + random() % 20) {
        await(at);
        const int rail = static_cast<int>(random() % static_cast<uint64_t>(rails));
        if (rail == spared) continue;
        const uint64_t rates[] = {1, kRate / 10, kRate / 2, kRate};
        const Direction directions[] = {Direction::Egress, Direction::Ingress, Direction::Both};
        if (random() % 8 == 0) {
          break_connections(rail);
        } else {
          world.pacing().set_rate(rail, rates[random() % 4], directions[random() % 3]);
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, TcpAidProperty, ::testing::Range<uint64_t>(1, 13));

// What is left in the kernel at the end of a request is watched over though nobody calls: backlogs end, and idle NICs
// have none.
TEST(TcpAid, NothingIsBackloggedWhenAllIsDone) {
  AidWorld world(3, 1, "20Mbit");
  world.exchange(30, [](const AidWorld::Await&) {});
  for (int rail = 0; rail < 3; ++rail) {
    for (const char* host : {"host0", "host1"}) {
      FlowCounters& flow = flow_counters(host, rail);
      while (flow.backlogged_ports != 0) std::this_thread::yield();  // the runner's own timeout fails this test
      EXPECT_GT(flow.backlogged_ns, 0u);
      EXPECT_GT(flow.backlogged_bytes, 0u);
    }
  }
  FlowCounters& flow = flow_counters("host1", 0);
  const uint64_t backlogged = flow.backlogged_ns;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(flow.backlogged_ns, backlogged);
}

}  // namespace
}  // namespace theseus
