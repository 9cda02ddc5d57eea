// What tests of sends, receives and uneven all-to-all on emulated GPUs share: messages whose bytes follow from who
// sends them to whom, the buffers they lie in, and what must have arrived.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "drivers/cuda/emu.h"
#include "gpu_ranks.h"

namespace theseus::testing {

using Bytes = std::vector<uint8_t>;

// What `from` sends to `to` as its `turn`th message.
inline Bytes message(int from, int to, int turn, size_t bytes) {
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

inline std::vector<int> devices_for(int ranks) {
  std::vector<int> devices;
  for (int rank = 0; rank < ranks; ++rank) devices.push_back(rank % 3);
  return devices;
}

// How many elements `from` has for `to`: some have nothing.
inline size_t split(int from, int to, size_t unit) { return static_cast<size_t>((from * 3 + to * 5) % 4) * unit; }

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

// A group that is captured into a graph runs whenever the graph does, and others may run between.
inline void check_graphs() {
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

}  // namespace theseus::testing
