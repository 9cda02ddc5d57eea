// Sends, receives and uneven all-to-all on emulated GPUs: what arrives is what left, bit for bit as on the host, in
// whatever order the calls come, and what cannot be is named.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <numeric>
#include <random>
#include <thread>

#include "base/env.h"
#include "drivers/cuda/emu.h"
#include "gpu_ranks.h"
#include "unit/runtime/rank_processes.h"

namespace theseus {
namespace {

using testing::driver;
using testing::GpuMemory;
using testing::GpuRanks;
using testing::GpuStream;
using testing::in_processes;
using testing::on_threads;

using Bytes = std::vector<uint8_t>;

// What `from` sends to `to` as its `turn`th message.
Bytes message(int from, int to, int turn, size_t bytes) {
  std::mt19937_64 random(static_cast<uint64_t>((from * 64 + to) * 1024 + turn));
  Bytes data(bytes);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
  return data;
}

// A buffer in a GPU's memory that starts `skew` bytes behind a vector's start, with guards around it.
class Buffer {
 public:
  Buffer(int device, const Bytes& data, size_t skew = 0)
      : skew_(skew), bytes_(data.size()), memory_(device, padded(data, skew).data(), data.size() + skew + kGuard) {}
  void* at() { return memory_.at(skew_); }
  Bytes read() {
    Bytes all(skew_ + bytes_ + kGuard);
    memory_.read(all.data());
    EXPECT_EQ(Bytes(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(skew_)), Bytes(skew_, kFill));
    EXPECT_EQ(Bytes(all.end() - kGuard, all.end()), Bytes(kGuard, kFill));
    return {all.begin() + static_cast<std::ptrdiff_t>(skew_), all.end() - kGuard};
  }

 private:
  static constexpr size_t kGuard = 16;
  static constexpr uint8_t kFill = 0xee;
  static Bytes padded(const Bytes& data, size_t skew) {
    Bytes all(skew + data.size() + kGuard, kFill);
    std::copy(data.begin(), data.end(), all.begin() + static_cast<std::ptrdiff_t>(skew));
    return all;
  }
  size_t skew_;
  size_t bytes_;
  GpuMemory memory_;
};

// What one rank gets and gives in a test: buffers that stay until all is checked.
class Mail {
 public:
  Mail(int rank, int device) : rank_(rank), device_(device) {}

  Status send(Communicator& communicator, int to, int turn, size_t bytes, cuda::Stream stream) {
    out_.push_back(std::make_unique<Buffer>(device_, message(rank_, to, turn, bytes)));
    return communicator.send(out_.back()->at(), bytes, DataType::Uint8, to, stream);
  }
  Status recv(Communicator& communicator, int from, int turn, size_t bytes, cuda::Stream stream) {
    in_.push_back({std::make_unique<Buffer>(device_, Bytes(bytes, 0)), message(from, rank_, turn, bytes)});
    return communicator.recv(in_.back().buffer->at(), bytes, DataType::Uint8, from, stream);
  }
  void check() {
    for (size_t i = 0; i < in_.size(); ++i) {
      ASSERT_TRUE(in_[i].buffer->read() == in_[i].right) << "rank " << rank_ << ", receive " << i;
    }
  }

 private:
  struct Received {
    std::unique_ptr<Buffer> buffer;
    Bytes right;
  };
  int rank_, device_;
  std::vector<std::unique_ptr<Buffer>> out_;
  std::vector<Received> in_;
};

class Mails {
 public:
  explicit Mails(GpuRanks& ranks) : ranks_(ranks) {
    for (int rank = 0; rank < ranks.size(); ++rank) mails_.push_back(std::make_unique<Mail>(rank, ranks.device(rank)));
  }
  Mail& operator[](int rank) { return *mails_[static_cast<size_t>(rank)]; }
  void finish() {
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      EXPECT_OK(ranks_.stream(rank).wait());
      EXPECT_OK(ranks_[rank].async_error());
      (*this)[rank].check();
    }
  }

 private:
  GpuRanks& ranks_;
  std::vector<std::unique_ptr<Mail>> mails_;
};

std::vector<int> devices_for(int ranks) {
  std::vector<int> devices;
  for (int rank = 0; rank < ranks; ++rank) devices.push_back(rank % 3);
  return devices;
}

// ---- Values ----

// Each type, at and around the sizes where a message changes its way: none, short ones in lines, a slot's worth,
// several slots; wherever in memory its elements may lie.
TEST(GpuSendRecv, CarriesAllTypesAndSizes) {
  GpuRanks ranks({0, 1});
  for (int type = 0; type < kDataTypes; ++type) {
    const size_t element = size_of(static_cast<DataType>(type));
    const size_t line = 4096 / element, slot = (128 << 10) / element;
    int turn = 0;
    for (const size_t count : {size_t{0}, size_t{1}, size_t{3}, line - 16 / element, line - 16 / element + 1,
                               slot - 16 / element, slot - 16 / element + 1, 2 * slot + 5}) {
      const Bytes right = message(type, 0, turn, count * element);
      Buffer out(0, right, turn % 3 * element), in(1, Bytes(right.size(), 0), turn % 2 * element);
      ++turn;
      group_start();
      EXPECT_OK(ranks[1].recv(in.at(), count, static_cast<DataType>(type), 0, ranks.stream(1).get()));
      EXPECT_OK(ranks[0].send(out.at(), count, static_cast<DataType>(type), 1, ranks.stream(0).get()));
      EXPECT_OK(group_end());
      EXPECT_OK(ranks.stream(0).wait());
      EXPECT_OK(ranks.stream(1).wait());
      ASSERT_TRUE(in.read() == right) << count << " of " << name_of(static_cast<DataType>(type));
    }
  }
}

// Large transfers are dealt to several links, and small ones among them keep their place.
TEST(GpuSendRecv, DealsLargeTransfersToSeveralLinks) {
  GpuRanks ranks({0, 0});
  Mails mails(ranks);
  const size_t sizes[] = {5 << 20, 10, (2 << 20) + 3, 0, 200'000, 9 << 20, 4000};
  group_start();
  for (int turn = 0; turn < 7; ++turn) EXPECT_OK(mails[0].send(ranks[0], 1, turn, sizes[turn], ranks.stream(0).get()));
  for (int turn = 0; turn < 7; ++turn) EXPECT_OK(mails[1].recv(ranks[1], 0, turn, sizes[turn], ranks.stream(1).get()));
  EXPECT_OK(group_end());
  mails.finish();
}

// Rank after rank, round and round; one rank alone talks to itself.
TEST(GpuSendRecv, GoesRoundRings) {
  for (int size = 1; size <= 5; ++size) {
    GpuRanks ranks(devices_for(size));
    Mails mails(ranks);
    for (int turn = 0; turn < 6; ++turn) {
      const size_t bytes = size_t{1} << (turn * 4);
      group_start();
      for (int rank = 0; rank < size; ++rank) {
        const cuda::Stream stream = ranks.stream(rank).get();
        EXPECT_OK(mails[rank].send(ranks[rank], (rank + 1) % size, turn, bytes, stream));
        EXPECT_OK(mails[rank].recv(ranks[rank], (rank + size - 1) % size, turn, bytes, stream));
      }
      EXPECT_OK(group_end());
    }
    mails.finish();
  }
}

// Everybody sends to everybody, itself included, several messages, and asks for them in an order of its own: those of
// one pair keep theirs. More calls than fit into a launch's parameters.
TEST(GpuSendRecv, AnyOrderOfCallsWillDo) {
  constexpr int kSize = 4;
  constexpr int kTurns = 5;
  const size_t sizes[kTurns] = {3000, 0, 150'000, 8, 5000};
  GpuRanks ranks(devices_for(kSize));
  Mails mails(ranks);
  on_threads(kSize, [&](int rank) {
    struct Call {
      bool sends;
      int peer;
    };
    std::vector<Call> calls;
    for (int peer = 0; peer < kSize; ++peer) {
      for (int turn = 0; turn < kTurns; ++turn) {
        calls.push_back({true, peer});
        calls.push_back({false, peer});
      }
    }
    std::shuffle(calls.begin(), calls.end(), std::mt19937_64(static_cast<uint64_t>(rank)));
    std::map<std::pair<bool, int>, int> turns;
    const cuda::Stream stream = ranks.stream(rank).get();
    group_start();
    for (const Call& call : calls) {
      const int turn = turns[{call.sends, call.peer}]++;
      EXPECT_OK(call.sends ? mails[rank].send(ranks[rank], call.peer, turn, sizes[turn], stream)
                           : mails[rank].recv(ranks[rank], call.peer, turn, sizes[turn], stream));
    }
    EXPECT_OK(group_end());
  });
  mails.finish();
}

// Calls outside groups, each a launch: what was sent waits for whoever comes later.
TEST(GpuSendRecv, RunsOutsideGroups) {
  GpuRanks ranks({0, 0});
  Mails mails(ranks);
  on_threads(2, [&](int rank) {
    const cuda::Stream stream = ranks.stream(rank).get();
    for (int turn = 0; turn < 40; ++turn) {
      const size_t bytes = static_cast<size_t>(turn) * 700;
      if ((turn + rank) % 2 == 0) {
        EXPECT_OK(mails[rank].send(ranks[rank], 1 - rank, turn, bytes, stream));
      } else {
        EXPECT_OK(mails[rank].recv(ranks[rank], 1 - rank, turn, bytes, stream));
      }
    }
  });
  mails.finish();
}

// More peers than thread blocks that this GPU can run: each serves several, and nobody waits for ever.
TEST(GpuSendRecv, FewThreadBlocksServeManyPeers) {
  constexpr int kSize = 9;  // on one emulated GPU, which has 32 thread blocks
  GpuRanks ranks(std::vector<int>(kSize, 0));
  Mails mails(ranks);
  for (const size_t bytes : {size_t{64}, size_t{300'000}}) {
    group_start();
    for (int rank = 0; rank < kSize; ++rank) {
      for (int peer = kSize - 1; peer >= 0; --peer) {
        EXPECT_OK(mails[rank].send(ranks[rank], peer, 0, bytes, ranks.stream(rank).get()));
      }
      for (int peer = 0; peer < kSize; ++peer) {
        EXPECT_OK(mails[rank].recv(ranks[rank], peer, 0, bytes, ranks.stream(rank).get()));
      }
    }
    EXPECT_OK(group_end());
  }
  mails.finish();
}

// ---- All-to-all with uneven splits ----

// How many elements `from` has for `to`: some have nothing.
size_t split(int from, int to, size_t unit) { return static_cast<size_t>((from * 3 + to * 5) % 4) * unit; }

struct Uneven {
  std::vector<size_t> send_counts, send_offsets, recv_counts, recv_offsets;
  std::vector<int32_t> send, recv, right;

  Uneven(int rank, int ranks, size_t unit) {
    for (int peer = 0; peer < ranks; ++peer) {
      send_offsets.push_back(send.size());
      send_counts.push_back(split(rank, peer, unit));
      for (size_t i = 0; i < send_counts.back(); ++i) send.push_back(value(rank, peer, i));
      // Not in the order of ranks, and with a gap.
      recv_offsets.push_back(0);
      recv_counts.push_back(split(peer, rank, unit));
    }
    for (int peer = ranks - 1; peer >= 0; --peer) {
      recv_offsets[static_cast<size_t>(peer)] = right.size();
      for (size_t i = 0; i < recv_counts[static_cast<size_t>(peer)]; ++i) right.push_back(value(peer, rank, i));
      right.push_back(-1);
    }
    recv.assign(right.size(), -1);
  }
  static int32_t value(int from, int to, size_t i) { return static_cast<int32_t>(i) * 256 + from * 16 + to; }

  AllToAllVCall call(void* from, void* to, cuda::Stream stream) const {
    AllToAllVCall call;
    call.send = from;
    call.send_counts = send_counts.data();
    call.send_offsets = send_offsets.data();
    call.recv = to;
    call.recv_counts = recv_counts.data();
    call.recv_offsets = recv_offsets.data();
    call.type = DataType::Int32;
    call.stream = stream;
    return call;
  }
};

// What one rank exchanges, call after call. Its memory stays until all ranks are done: to give it back waits for all
// work of the device, so also for kernels of other ranks that wait for this one.
class Exchanges {
 public:
  explicit Exchanges(int device) : device_(device) {}

  void submit(Communicator& communicator, size_t unit, cuda::Stream stream) {
    Uneven& uneven = *all_.emplace_back(std::make_unique<Uneven>(communicator.rank(), communicator.ranks(), unit));
    memory_.push_back(std::make_unique<GpuMemory>(device_, uneven.send.data(), uneven.send.size() * 4));
    memory_.push_back(std::make_unique<GpuMemory>(device_, uneven.recv.data(), uneven.recv.size() * 4));
    void* const from = memory_[memory_.size() - 2]->at();
    EXPECT_OK(communicator.all_to_all_v(uneven.call(from, memory_.back()->at(), stream)));
  }
  void check() {
    for (size_t i = 0; i < all_.size(); ++i) {
      memory_[2 * i + 1]->read(all_[i]->recv.data());
      EXPECT_TRUE(all_[i]->recv == all_[i]->right) << "exchange " << i;
    }
  }

 private:
  int device_;
  std::vector<std::unique_ptr<Uneven>> all_;
  std::vector<std::unique_ptr<GpuMemory>> memory_;
};

TEST(GpuAllToAllV, CarriesUnevenSplits) {
  for (int size = 1; size <= 5; ++size) {
    GpuRanks ranks(devices_for(size));
    std::vector<Exchanges> exchanges;
    for (int rank = 0; rank < size; ++rank) exchanges.emplace_back(ranks.device(rank));
    on_threads(size, [&](int rank) {
      for (const size_t unit : {1, 33, 40'000}) {
        exchanges[static_cast<size_t>(rank)].submit(ranks[rank], unit, ranks.stream(rank).get());
      }
      EXPECT_OK(ranks.stream(rank).wait());
    });
    for (Exchanges& each : exchanges) each.check();
  }
}

// ---- Streams, groups, graphs ----

// A call returns when it is queued, and takes its place in the stream.
TEST(GpuSendRecv, CallsTakeTheirPlaceInTheStream) {
  GpuRanks ranks({0, 0});
  Mails mails(ranks);
  std::atomic<bool> open{false};
  const auto wait_for_it = [](void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
  };
  EXPECT_OK(driver().call_host(0, ranks.stream(0).get(), wait_for_it, &open));
  EXPECT_OK(mails[0].send(ranks[0], 1, 0, 5000, ranks.stream(0).get()));
  EXPECT_OK(mails[1].recv(ranks[1], 0, 0, 5000, ranks.stream(1).get()));
  EXPECT_FALSE(ranks.stream(0).idle());
  EXPECT_FALSE(ranks.stream(1).idle());
  open.store(true);
  mails.finish();
}

// The calls of one group may name several streams: the group waits for all of them, and all of them for it.
TEST(GpuSendRecv, AGroupMaySpanStreams) {
  GpuRanks ranks({0, 0});
  GpuStream other(0);
  Mails mails(ranks);
  std::atomic<bool> open{false};
  const auto wait_for_it = [](void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
  };
  EXPECT_OK(driver().call_host(0, other.get(), wait_for_it, &open));
  group_start();
  EXPECT_OK(mails[0].send(ranks[0], 1, 0, 5000, ranks.stream(0).get()));
  EXPECT_OK(mails[0].recv(ranks[0], 1, 0, 6000, other.get()));
  EXPECT_OK(mails[1].send(ranks[1], 0, 0, 6000, ranks.stream(1).get()));
  EXPECT_OK(mails[1].recv(ranks[1], 0, 0, 5000, ranks.stream(1).get()));
  EXPECT_OK(group_end());
  EXPECT_FALSE(ranks.stream(0).idle());
  open.store(true);
  EXPECT_OK(other.wait());
  mails[0].check();  // what came is there, though only the other stream was waited for
  mails.finish();
}

// Transfers of one communicator run in the order of the calls, whatever streams they are on, among its collectives.
TEST(GpuSendRecv, SharesStreamsWithCollectives) {
  GpuRanks ranks({0, 1});
  GpuStream other[2] = {GpuStream(0), GpuStream(1)};
  Mails mails(ranks);
  std::vector<int32_t> ones(3000, 1), results(3000);
  GpuMemory memory[2] = {{0, ones.data(), 12000}, {1, ones.data(), 12000}};
  constexpr int kRounds = 6;
  on_threads(2, [&](int rank) {
    for (int round = 0; round < kRounds; ++round) {
      CollectiveCall sum;
      sum.send = sum.recv = memory[rank].at();
      sum.count = 3000;
      sum.type = DataType::Int32;
      sum.stream = round % 2 == 0 ? ranks.stream(rank).get() : other[rank].get();
      const cuda::Stream stream = round % 3 == 0 ? ranks.stream(rank).get() : other[rank].get();
      if (round % 2 == 0) group_start();
      const size_t bytes = size_t{1} << (2 * round);
      EXPECT_OK(rank == 0 ? mails[0].send(ranks[0], 1, round, bytes, stream)
                          : mails[1].recv(ranks[1], 0, round, bytes, stream));
      EXPECT_OK(ranks[rank].submit(sum));
      if (round % 2 == 0) EXPECT_OK(group_end());
    }
    EXPECT_OK(other[rank].wait());
  });
  mails.finish();
  for (GpuMemory& each : memory) {
    each.read(results.data());
    EXPECT_EQ(results, std::vector<int32_t>(3000, 1 << kRounds));
  }
}

// Two communicators in one group, on one stream of each rank, in the same order everywhere.
TEST(GpuSendRecv, AGroupMaySpanCommunicators) {
  GpuRanks first({0, 1}), second({0, 1});
  Mails mails(first), others(second);
  on_threads(2, [&](int rank) {
    const cuda::Stream stream = first.stream(rank).get();
    for (int turn = 0; turn < 10; ++turn) {
      const bool swapped = turn % 2 == 1;
      for (int half = 0; half < 2; ++half) {
        if (half == 0) group_start();
        const bool is_first = (half == 0) != swapped;
        Communicator& communicator = is_first ? first[rank] : second[rank];
        Mail& mail = is_first ? mails[rank] : others[rank];
        EXPECT_OK(mail.recv(communicator, 1 - rank, turn, 3000, stream));
        EXPECT_OK(mail.send(communicator, 1 - rank, turn, 3000, stream));
      }
      EXPECT_OK(group_end());
    }
    EXPECT_OK(first.stream(rank).wait());
  });
  mails.finish();
  others.finish();
}

// A group that is captured into a graph runs whenever the graph does, and others may run between.
void check_graphs() {
  auto& emulator = static_cast<cuda::Emulator&>(driver());
  GpuRanks ranks({0, 1});
  constexpr size_t kCount = 50'000;
  std::vector<int32_t> numbers[2] = {std::vector<int32_t>(kCount), std::vector<int32_t>(kCount)};
  std::vector<std::unique_ptr<GpuMemory>> from, to;
  for (int rank = 0; rank < 2; ++rank) {
    std::iota(numbers[rank].begin(), numbers[rank].end(), rank * 1000);
    const std::vector<int32_t> nothing(2 * kCount, -1);
    from.push_back(std::make_unique<GpuMemory>(rank, numbers[rank].data(), kCount * 4));
    to.push_back(std::make_unique<GpuMemory>(rank, nothing.data(), 2 * kCount * 4));
    EXPECT_OK(emulator.begin_capture(rank, ranks.stream(rank).get()));
  }
  // To the other and to itself.
  const auto submit = [&] {
    group_start();
    for (int rank = 0; rank < 2; ++rank) {
      const auto at = static_cast<size_t>(rank);
      for (int peer = 0; peer < 2; ++peer) {
        const cuda::Stream stream = ranks.stream(rank).get();
        EXPECT_OK(ranks[rank].send(from[at]->at(), kCount, DataType::Int32, peer, stream));
        EXPECT_OK(ranks[rank].recv(to[at]->at(static_cast<size_t>(peer) * kCount * 4), kCount, DataType::Int32, peer,
                                   stream));
      }
    }
    EXPECT_OK(group_end());
  };
  submit();
  std::vector<std::shared_ptr<cuda::EmuGraph>> graphs;
  for (int rank = 0; rank < 2; ++rank) {
    auto graph = emulator.end_capture(rank, ranks.stream(rank).get());
    ASSERT_TRUE(graph.ok()) << graph.status().message();
    graphs.push_back(*graph);
  }
  for (int round = 0; round < 4; ++round) {
    for (int rank = 0; rank < 2; ++rank) {
      const auto at = static_cast<size_t>(rank);
      for (int32_t& number : numbers[rank]) ++number;
      EXPECT_OK(driver().copy(rank, from[at]->at(), numbers[rank].data(), kCount * 4, ranks.stream(rank).get()));
      if (round != 2) EXPECT_OK(emulator.replay(rank, graphs[at], ranks.stream(rank).get()));
    }
    if (round == 2) submit();
    for (int rank = 0; rank < 2; ++rank) EXPECT_OK(ranks.stream(rank).wait());
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<int32_t> got(2 * kCount);
      to[static_cast<size_t>(rank)]->read(got.data());
      for (int peer = 0; peer < 2; ++peer) {
        const auto begin = got.begin() + peer * static_cast<std::ptrdiff_t>(kCount);
        ASSERT_TRUE(std::equal(numbers[peer].begin(), numbers[peer].end(), begin)) << round;
      }
    }
  }
}

TEST(GpuSendRecv, GraphsRunCapturedGroups) { check_graphs(); }

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
