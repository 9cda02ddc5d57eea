// The rendezvous: what ranks get, and that whatever goes wrong reaches everybody, named, in bounded time.
#include "net/rendezvous.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <mutex>

#include "base/env.h"
#include "net/interfaces.h"
#include "net/process_server.h"
#include "net/rendezvous_service.h"
#include "unit/net/ranks.h"

namespace theseus {
namespace {

using testing::eventually;
using testing::run_ranks;

// All ranks join with `ranks_of(rank)`; returns the outcomes by caller.
std::vector<Result<RendezvousResult>> join_all(const UniqueId& id, const std::vector<std::pair<int, int>>& callers,
                                               double timeout) {
  std::vector<Result<RendezvousResult>> results(callers.size(), Status::internal("did not run"));
  run_ranks(static_cast<int>(callers.size()), [&](int caller) {
    const auto [rank, ranks] = callers[static_cast<size_t>(caller)];
    results[static_cast<size_t>(caller)] =
        rendezvous(id, rank, ranks, "blob of " + std::to_string(rank), Deadline::after(timeout));
  });
  return results;
}

std::vector<std::pair<int, int>> all_of(int ranks) {
  std::vector<std::pair<int, int>> callers;
  for (int rank = 0; rank < ranks; ++rank) callers.emplace_back(rank, ranks);
  return callers;
}

void expect_all_together(const std::vector<Result<RendezvousResult>>& results) {
  for (const auto& result : results) {
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(result->communicator, results.front()->communicator);
    ASSERT_EQ(result->blobs.size(), results.size());
    for (size_t rank = 0; rank < results.size(); ++rank)
      EXPECT_EQ(result->blobs[rank], "blob of " + std::to_string(rank));
  }
}

UniqueId fresh_id() {
  auto id = create_unique_id();
  EXPECT_TRUE(id.ok()) << id.status().message();
  return id.ok() ? id.value() : UniqueId{};
}

void expect_failure(const Result<RendezvousResult>& result, Code code, const std::string& part) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), code) << result.status().message();
  EXPECT_NE(result.status().message().find(part), std::string::npos) << result.status().message();
}

TEST(Rendezvous, EveryoneGetsAllBlobsInRankOrder) {
  for (const int ranks : {1, 2, 7, 32}) expect_all_together(join_all(fresh_id(), all_of(ranks), 30));
}

TEST(Rendezvous, SeveralAtOnceDoNotMix) {
  const UniqueId first = fresh_id(), second = fresh_id();
  std::vector<Result<RendezvousResult>> one(3, Status::internal("")), two(3, Status::internal(""));
  run_ranks(6, [&](int caller) {
    const int rank = caller % 3;
    auto result =
        rendezvous(caller < 3 ? first : second, rank, 3, "blob of " + std::to_string(rank), Deadline::after(30));
    (caller < 3 ? one : two)[static_cast<size_t>(rank)] = std::move(result);
  });
  expect_all_together(one);
  expect_all_together(two);
  EXPECT_FALSE(one[0]->communicator == two[0]->communicator);
}

TEST(Rendezvous, MissingRanksAreNamed) {
  for (const auto& result : join_all(fresh_id(), {{0, 5}, {1, 5}, {4, 5}}, 0.3)) {
    expect_failure(result, Code::Timeout, "ranks 2, 3 of 5 did not join within 0.");
  }
}

TEST(Rendezvous, DuplicateRankFailsEverybody) {
  for (const auto& result : join_all(fresh_id(), {{0, 3}, {0, 3}}, 30)) {
    expect_failure(result, Code::InvalidUsage, "rank 0 joined twice");
  }
}

TEST(Rendezvous, DifferentNumbersOfRanksAreNamed) {
  for (const auto& result : join_all(fresh_id(), {{0, 2}, {1, 3}}, 30)) {
    expect_failure(result, Code::InvalidUsage, "disagree about how many there are");
    EXPECT_NE(result.status().message().find("says 2"), std::string::npos);
    EXPECT_NE(result.status().message().find("says 3"), std::string::npos);
  }
}

TEST(Rendezvous, DifferentSettingsAreNamed) {
  const UniqueId id = fresh_id();
  run_ranks(2, [&](int rank) {
    const auto result = rendezvous(id, rank, 2, "", Deadline::after(30),
                                   std::string("THESEUS_SLOTS=8;THESEUS_ALGO=") + (rank == 0 ? "ring" : "tree"));
    expect_failure(result, Code::InvalidUsage, "THESEUS_ALGO=ring");
    expect_failure(result, Code::InvalidUsage, "THESEUS_ALGO=tree");
    EXPECT_EQ(result.status().message().find("SLOTS"), std::string::npos);
  });
}

TEST(Rendezvous, AnIdIsGoodForOneCommunicator) {
  const UniqueId id = fresh_id();
  expect_all_together(join_all(id, all_of(2), 30));
  for (const auto& result : join_all(id, all_of(2), 30))
    expect_failure(result, Code::InvalidUsage, "used for a communicator before");
}

TEST(Rendezvous, WhoComesAfterTheFailureGetsItsReason) {
  const UniqueId id = fresh_id();
  expect_failure(rendezvous(id, 0, 2, "", Deadline::after(0.1)), Code::Timeout, "rank 1 of 2");
  expect_failure(rendezvous(id, 1, 2, "", Deadline::after(30)), Code::Timeout, "could not be built: rank 1 of 2");
}

TEST(Rendezvous, BadArgumentsAreRefused) {
  const UniqueId id = fresh_id();
  const Deadline soon = Deadline::after(5);
  expect_failure(rendezvous(UniqueId{}, 0, 1, "", soon), Code::InvalidArgument, "all zero");
  UniqueId garbage;
  std::memset(garbage.bytes, 0x5a, sizeof garbage.bytes);
  expect_failure(rendezvous(garbage, 0, 1, "", soon), Code::InvalidArgument, "not one of this library's");
  expect_failure(rendezvous(id, 0, 0, "", soon), Code::InvalidArgument, "number of ranks is 0");
  expect_failure(rendezvous(id, 2, 2, "", soon), Code::InvalidArgument, "rank 2");
  expect_failure(rendezvous(id, -1, 2, "", soon), Code::InvalidArgument, "rank -1");
  expect_failure(rendezvous(id, 0, 1, std::string(kMaxRendezvousBlob + 1, 'x'), soon), Code::InvalidArgument,
                 "limited");
  const auto largest = rendezvous(id, 0, 1, std::string(kMaxRendezvousBlob, 'x'), soon);
  EXPECT_TRUE(largest.ok()) << largest.status().message();
}

TEST(Rendezvous, AnUnknownIdIsRefusedAndAClosedPortNamed) {
  UniqueId id = fresh_id();
  id.bytes[8] ^= 1;  // the nonce: an id of an earlier process at the same port
  expect_failure(rendezvous(id, 0, 1, "", Deadline::after(30)), Code::InvalidUsage, "does not know it");

  auto listener = Socket::listen(Address::loopback(AF_INET, 0));
  ASSERT_TRUE(listener.ok());
  const Address closed = listener->local_address();
  listener->close();
  const UniqueId derived = derive_unique_id(random_id(), {closed});
  expect_failure(rendezvous(derived, 0, 1, "", Deadline::after(0.2)), Code::RemoteError,
                 "does not answer at " + closed.to_string());
}

TEST(Rendezvous, ARankThatGoesIsNamedToTheOthers) {
  const UniqueId id = fresh_id();
  std::atomic<bool> cancel{false};
  run_ranks(2, [&](int rank) {
    if (rank == 1) {
      const auto result = rendezvous(id, 1, 3, "", Deadline::after(30).with_cancel(&cancel));
      return expect_failure(result, Code::InvalidUsage, "aborted");
    }
    usleep(50000);
    cancel = true;
    expect_failure(rendezvous(id, 0, 3, "", Deadline::after(30)), Code::RemoteError, "rank 1");
  });
}

TEST(Rendezvous, DerivedIdsNeedNoRegistrationAndMayBeUsedAgain) {
  ASSERT_TRUE(start_rendezvous_service().ok());
  const auto addresses = ProcessServer::get().value()->addresses();
  ASSERT_TRUE(addresses.ok());
  const UniqueId id = derive_unique_id(derive_id(random_id(), "split 0"), addresses.value());
  const auto first = join_all(id, all_of(3), 30);
  const auto second = join_all(id, all_of(3), 30);
  expect_all_together(first);
  expect_all_together(second);
  EXPECT_FALSE(first[0]->communicator == second[0]->communicator);
}

TEST(Rendezvous, CommIdNamesWhereRankZeroListensHoweverLate) {
  auto listener = Socket::listen(Address::loopback(AF_INET, 0));
  ASSERT_TRUE(listener.ok());
  const std::string address = listener->local_address().to_string();
  listener->close();
  setenv("NCCL_COMM_ID", address.c_str(), 1);
  reload_settings();
  for (int round = 0; round < 2; ++round) {
    std::vector<Result<RendezvousResult>> results(3, Status::internal(""));
    run_ranks(3, [&](int rank) {
      if (rank == 0) usleep(100000);
      results[static_cast<size_t>(rank)] =
          rendezvous(fresh_id(), rank, 3, "blob of " + std::to_string(rank), Deadline::after(30));
    });
    expect_all_together(results);
  }
  unsetenv("NCCL_COMM_ID");
  reload_settings();
}

// Cases: nmap -sT, a stray HTTP client, an old job's peer, idle and slow connections.
TEST(Rendezvous, StrangersDoNoHarm) {
  const UniqueId id = fresh_id();
  const auto doors = ProcessServer::get().value()->addresses();
  const Address door = doors->front();
  const Deadline soon = Deadline::after(20);
  std::vector<Socket> strangers;
  const auto stranger = [&](const std::string& says) {
    auto socket = Socket::connect(door, soon);
    ASSERT_TRUE(socket.ok()) << socket.status().message();
    ASSERT_TRUE(says.empty() || socket->send_all(says.data(), says.size(), soon).ok());
    strangers.push_back(std::move(socket).value());
  };
  for (int i = 0; i < 50; ++i) stranger("");
  for (int i = 0; i < 20; ++i) {
    stranger("");
    strangers.back().close();
  }
  stranger("TH");
  stranger("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  stranger("\x01\x02\x03\x04\x05\x06\x07\x08");
  Hello old;
  old.version = 77;
  stranger(std::string(reinterpret_cast<const char*>(&old), sizeof old));
  Hello hello;
  hello.purpose = Purpose::Rendezvous;
  std::string greeting(reinterpret_cast<const char*>(&hello), sizeof hello);
  stranger(greeting);                                                 // then silence
  stranger(greeting + std::string("\xff\xff\xff\xff\x01\0\0\0", 8));  // a frame of 4 GB
  stranger(greeting + std::string("\x04\0\0\0\x01\0\0\0junk", 12));   // a malformed join
  JoinRequest request;
  request.rank = 0;
  request.ranks = 1;
  const std::string join = request.encode();
  const auto length = static_cast<uint32_t>(join.size());
  std::string frame(reinterpret_cast<const char*>(&length), 4);
  stranger(greeting + frame + std::string("\x01\0\0\0", 4) + join);  // a nonce that nobody knows
  expect_all_together(join_all(id, all_of(4), 30));
}

TEST(ProcessServer, AStrangerWithTheWrongMagicIsHungUpOn) {
  auto socket = Socket::connect(ProcessServer::get().value()->addresses()->front(), Deadline::after(20));
  ASSERT_TRUE(socket.ok());
  ASSERT_TRUE(socket->send_all("GET / HTTP/1.0\r\n\r\n", 18, Deadline::after(20)).ok());
  char byte;
  EXPECT_EQ(socket->recv_all(&byte, 1, Deadline::after(20)).code(), Code::RemoteError);
}

TEST(ProcessServer, ConnectionsWaitForTheirHandlerAndReachTheRightRank) {
  ProcessServer* server = ProcessServer::get().value();
  const CommId communicator = random_id();
  std::mutex mutex;
  std::vector<Socket> kept;
  std::map<int, int> rails;
  const auto say = [&](int destination, int rail) {
    Hello hello;
    hello.communicator = communicator;
    hello.destination = destination;
    hello.rail = rail;
    auto socket = rail % 2 == 0 ? ProcessServer::connect(server->addresses().value(), hello, Deadline::after(20))
                                : ProcessServer::connect_unix(server->unix_name(), hello, Deadline::after(20));
    ASSERT_TRUE(socket.ok()) << socket.status().message();
    kept.push_back(std::move(socket).value());
  };
  say(0, 10);
  say(1, 11);
  usleep(20000);
  for (const int rank : {0, 1}) {
    server->register_handler(communicator, Purpose::Data, rank, [&, rank](const Hello& hello, Socket) {
      std::lock_guard lock(mutex);
      EXPECT_EQ(hello.destination, rank);
      rails[hello.rail] = rank;
    });
  }
  say(0, 20);
  say(1, 21);
  EXPECT_TRUE(eventually([&] {
    std::lock_guard lock(mutex);
    return rails == std::map<int, int>{{10, 0}, {11, 1}, {20, 0}, {21, 1}};
  }));
  for (const int rank : {0, 1}) server->unregister_handler(communicator, Purpose::Data, rank);
  server->loop().run([] {});
}

TEST(ProcessServer, NeverAdvertisesThePortAsZero) {
  const auto addresses = ProcessServer::get().value()->addresses();
  ASSERT_TRUE(addresses.ok());
  for (const Address& address : addresses.value()) EXPECT_NE(address.port(), 0);
}

}  // namespace
}  // namespace theseus
