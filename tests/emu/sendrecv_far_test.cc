// Sends, receives and uneven all-to-all on emulated GPUs, between hosts and processes, and what cannot be: it is named.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <thread>
#include <utility>

#include "base/env.h"
#include "mail.h"
#include "unit/runtime/rank_processes.h"

namespace theseus {
namespace {

using testing::Bytes;
using testing::check_graphs;
using testing::devices_for;
using testing::driver;
using testing::Exchanges;
using testing::GpuMemory;
using testing::GpuRanks;
using testing::GpuStream;
using testing::in_processes;
using testing::Mail;
using testing::Mails;
using testing::message;
using testing::on_threads;

// ---- Hosts ----

// Ranks that may not share memory count as hosts of their own: what they send goes over two rails.
class GpuSendRecvHosts : public ::testing::Test {
 protected:
  GpuSendRecvHosts() {
    for (const auto& [name, value] : kSettings) setenv(name, value, 1);
    reload_settings();
  }
  ~GpuSendRecvHosts() override {
    for (const auto& [name, value] : kSettings) unsetenv(name);
    reload_settings();
  }

 private:
  static constexpr std::pair<const char*, const char*> kSettings[] = {
      {"THESEUS_HOST", "sendrecv-test"}, {"THESEUS_SHM", "0"}, {"THESEUS_NICS", "127.0.0.1,127.0.0.2"}};
};

TEST_F(GpuSendRecvHosts, AnyOrderOfCallsWillDo) {
  constexpr int kSize = 3;
  GpuRanks ranks(devices_for(kSize));
  Mails mails(ranks);
  const size_t sizes[] = {3000, 0, 700'000, 8, (128 << 10) - 16, 2 << 20};
  group_start();
  for (int rank = 0; rank < kSize; ++rank) {
    for (int peer = kSize - 1; peer >= 0; --peer) {
      for (int turn = 0; turn < 6; ++turn) {
        EXPECT_OK(mails[rank].send(ranks[rank], peer, turn, sizes[turn], ranks.stream(rank).get()));
        EXPECT_OK(mails[rank].recv(ranks[rank], (peer + rank) % kSize, turn, sizes[turn], ranks.stream(rank).get()));
      }
    }
  }
  EXPECT_OK(group_end());
  mails.finish();
}

TEST_F(GpuSendRecvHosts, GraphsRunCapturedGroups) { check_graphs(); }

TEST_F(GpuSendRecvHosts, UnevenAllToAllAmongCollectives) {
  GpuRanks ranks({0, 1, 0});
  std::vector<int32_t> ones(3000, 1), results(3000);
  std::vector<std::unique_ptr<GpuMemory>> memory;
  std::vector<Exchanges> exchanges;
  for (int rank = 0; rank < 3; ++rank) {
    memory.push_back(std::make_unique<GpuMemory>(ranks.device(rank), ones.data(), 12000));
    exchanges.emplace_back(ranks.device(rank));
  }
  on_threads(3, [&](int rank) {
    CollectiveCall sum;
    sum.send = sum.recv = memory[static_cast<size_t>(rank)]->at();
    sum.count = 3000;
    sum.type = DataType::Int32;
    sum.stream = ranks.stream(rank).get();
    EXPECT_OK(ranks[rank].submit(sum));
    for (const size_t unit : {1, 50'000, 7})
      exchanges[static_cast<size_t>(rank)].submit(ranks[rank], unit, ranks.stream(rank).get());
    EXPECT_OK(ranks[rank].submit(sum));
    EXPECT_OK(ranks.stream(rank).wait());
  });
  for (Exchanges& each : exchanges) each.check();
  for (const auto& each : memory) {
    each->read(results.data());
    EXPECT_EQ(results, std::vector<int32_t>(3000, 9));
  }
}

// ---- Failure ----

Status wait_for_failure(GpuRanks& ranks) {
  for (;;) {
    for (int rank = 0; rank < ranks.size(); ++rank) {
      if (Status status = ranks[rank].async_error(); !status.ok()) return status;
    }
    std::this_thread::yield();
  }
}

void abort_all(GpuRanks& ranks) {
  for (int rank = 0; rank < ranks.size(); ++rank) EXPECT_OK(Communicator::abort(ranks.take(rank)));
}

// A kernel whose peer never comes leaves when its communicator is aborted, and the stream goes on.
TEST(GpuSendRecvFailure, AbortEndsAKernelThatWaits) {
  for (const bool sends : {false, true}) {
    GpuRanks ranks({0, 0});
    Mails mails(ranks);
    const cuda::Stream stream = ranks.stream(0).get();
    constexpr size_t kBytes = 3 << 20;  // more than the slots hold
    EXPECT_OK(sends ? mails[0].send(ranks[0], 1, 0, kBytes, stream) : mails[0].recv(ranks[0], 1, 0, kBytes, stream));
    EXPECT_FALSE(ranks.stream(0).idle());
    EXPECT_OK(Communicator::abort(ranks.take(0)));
    EXPECT_OK(ranks.stream(0).wait());
    EXPECT_OK(Communicator::abort(ranks.take(1)));
  }
}

// A receive of another count or type than what was sent is found out by the receiver, who names both, as on the host;
// also where one goes in lines and the other in slots.
void check_mismatches() {
  struct Case {
    size_t sent, received;
    DataType sent_as, received_as;
    const char *ours, *theirs;
  };
  const Case cases[] = {
      {5, 6, DataType::Float32, DataType::Float32, "rank 1 runs SendRecv of 6 float32",
       "rank 0 runs SendRecv of 5 float32"},
      {8, 8, DataType::Float32, DataType::Int32, "rank 1 runs SendRecv of 8 int32",
       "rank 0 runs SendRecv of 8 float32"},
      {10, 100'000, DataType::Int8, DataType::Int8, "rank 1 runs SendRecv of 100000 int8",
       "rank 0 runs SendRecv of 10 int8"},
      {300'000, 0, DataType::Int8, DataType::Int8, "rank 1 runs SendRecv of 0 int8",
       "rank 0 runs SendRecv of 300000 int8"},
  };
  for (const Case& test : cases) {
    GpuRanks ranks({0, 0});
    const Bytes zeros(400'000, 0);
    GpuMemory from(0, zeros.data(), zeros.size()), to(0, zeros.data(), zeros.size());
    EXPECT_OK(ranks[0].send(from.at(), test.sent, test.sent_as, 1, ranks.stream(0).get()));
    EXPECT_OK(ranks[1].recv(to.at(), test.received, test.received_as, 0, ranks.stream(1).get()));
    const Status status = wait_for_failure(ranks);
    EXPECT_EQ(status.code(), Code::InvalidUsage);
    EXPECT_EQ(status.message(), std::string("mismatched calls: ") + test.ours + ", but " + test.theirs);
    abort_all(ranks);
  }
}

TEST(GpuSendRecvFailure, MismatchesAreNamed) { check_mismatches(); }
TEST_F(GpuSendRecvHosts, MismatchesAreNamed) { check_mismatches(); }

// Rank 0's splits say another number than rank 1's.
TEST(GpuSendRecvFailure, UnevenSplitsThatDisagreeAreNamed) {
  GpuRanks ranks({0, 0});
  const std::vector<int32_t> zeros(100, 0);
  GpuMemory from(0, zeros.data(), 400), to(0, zeros.data(), 400);
  on_threads(2, [&](int rank) {
    const size_t counts[2] = {5, 5}, fewer[2] = {4, 5}, offsets[2] = {0, 10};
    AllToAllVCall call;
    call.send = from.at();
    call.recv = to.at();
    call.send_counts = counts;
    call.recv_counts = rank == 0 ? counts : fewer;
    call.send_offsets = call.recv_offsets = offsets;
    call.type = DataType::Int32;
    call.stream = ranks.stream(rank).get();
    EXPECT_OK(ranks[rank].all_to_all_v(call));
  });
  const Status status = wait_for_failure(ranks);
  EXPECT_NE(status.message().find("rank 1 runs AllToAllV of 4 int32"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("rank 0 runs AllToAllV of 5 int32"), std::string::npos) << status.message();
  abort_all(ranks);
}

// A send to oneself needs its receive in the same group, of the same count.
TEST(GpuSendRecvFailure, ToOneselfNeedsBothHalves) {
  GpuRanks ranks({0});
  const std::vector<int32_t> ones(10, 1);
  GpuMemory memory(0, ones.data(), 40);
  const cuda::Stream stream = ranks.stream(0).get();
  EXPECT_NE(ranks[0].send(memory.at(), 1, DataType::Int32, 0, stream).message().find("must be in one group"),
            std::string::npos);
  group_start();
  EXPECT_OK(ranks[0].send(memory.at(), 3, DataType::Int32, 0, stream));
  EXPECT_OK(ranks[0].recv(memory.at(20), 4, DataType::Int32, 0, stream));
  EXPECT_NE(group_end().message().find("sends itself 3 int32 and receives 4 int32"), std::string::npos);
  EXPECT_OK(ranks[0].async_error());
}

// Pointers to ordinary memory, and ranks that do not exist, are refused at the call.
TEST(GpuSendRecvFailure, BadArgumentsAreRefused) {
  GpuRanks ranks({0, 0});
  std::vector<int32_t> ones(10, 1);
  GpuMemory memory(0, ones.data(), 40);
  const cuda::Stream stream = ranks.stream(0).get();
  const auto refused = [](const Status& status, const char* why) {
    EXPECT_EQ(status.code(), Code::InvalidArgument);
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
  };
  refused(ranks[0].send(ones.data(), 10, DataType::Int32, 1, stream), "sendbuff is no memory of a GPU");
  refused(ranks[0].recv(ones.data(), 10, DataType::Int32, 1, stream), "recvbuff is no memory of a GPU");
  refused(ranks[0].send(nullptr, 10, DataType::Int32, 1, stream), "NULL");
  refused(ranks[0].send(memory.at(), 10, DataType::Int32, 2, stream), "peer 2");
  const size_t counts[2] = {0, 1}, offsets[2] = {0, 0};
  AllToAllVCall call;
  call.send = ones.data();
  call.recv = memory.at();
  call.send_counts = call.recv_counts = counts;
  call.send_offsets = call.recv_offsets = offsets;
  refused(ranks[0].all_to_all_v(call), "sendbuff is no memory of a GPU");
}

// Ranks of one communicator on one stream would wait for each other for ever.
TEST(GpuSendRecvFailure, OneStreamForTwoRanksIsRefused) {
  GpuRanks ranks({0, 0});
  Mails mails(ranks);
  group_start();
  EXPECT_OK(mails[0].send(ranks[0], 1, 0, 10, ranks.stream(0).get()));
  EXPECT_OK(mails[1].recv(ranks[1], 0, 0, 10, ranks.stream(0).get()));
  EXPECT_NE(group_end().message().find("same stream"), std::string::npos);
  abort_all(ranks);
}

// ---- Processes ----

void check_all(const UniqueId& id, int ranks, int rank, int device) {
  EXPECT_OK(driver().set_current_device(device));
  Result<Communicator*> made = Communicator::init(id, ranks, rank, {});
  ASSERT_TRUE(made.ok()) << made.status().message();
  {
    GpuStream stream(device);
    Mail mail(rank, device);
    for (int turn = 0; turn < 3; ++turn) {
      const size_t bytes = turn == 0 ? 100 : turn * 700'000;
      group_start();
      for (int peer = ranks - 1; peer >= 0; --peer) EXPECT_OK(mail.recv(**made, peer, turn, bytes, stream.get()));
      for (int peer = 0; peer < ranks; ++peer) EXPECT_OK(mail.send(**made, peer, turn, bytes, stream.get()));
      EXPECT_OK(group_end());
    }
    Exchanges exchanges(device);
    for (const size_t unit : {1000, 5}) exchanges.submit(**made, unit, stream.get());
    EXPECT_OK(stream.wait());
    mail.check();
    exchanges.check();
    EXPECT_OK((*made)->barrier());
  }
  EXPECT_OK(Communicator::destroy(*made));
}

TEST(GpuSendRecvProcesses, ShareOneGpu) {
  in_processes(2, [](const UniqueId& id, int rank) { check_all(id, 2, rank, 0); });
}

TEST(GpuSendRecvProcesses, HaveOneEach) {
  in_processes(3, [](const UniqueId& id, int rank) { check_all(id, 3, rank, rank); });
}

// The kernel of a rank whose peer was killed leaves, and the communicator says who is gone.
TEST(GpuSendRecvProcesses, ADeadPeerEndsTheKernelThatWaits) {
  in_processes(
      2,
      [](const UniqueId& id, int rank) {
        Result<Communicator*> made = Communicator::init(id, 2, rank, {});
        ASSERT_TRUE(made.ok()) << made.status().message();
        EXPECT_OK((*made)->barrier());
        if (rank == 1) (void)raise(SIGKILL);
        GpuStream stream(0);
        Mail mail(0, 0);
        (void)mail.recv(**made, 1, 0, 1000, stream.get()).ok();  // refused where the news came first
        EXPECT_OK(stream.wait());
        while ((*made)->async_error().ok()) std::this_thread::yield();
        EXPECT_EQ((*made)->async_error().code(), Code::RemoteError) << (*made)->async_error().message();
        EXPECT_OK(Communicator::abort(*made));
      },
      /*killed=*/1);
}

}  // namespace
}  // namespace theseus
