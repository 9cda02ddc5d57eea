// Ranks that send to each other by the kernel of transfers, all their device memory in this process. Plain enough for
// ThreadSanitizer's build of it, which knows nothing of the library.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "device/kernel_abi.h"
#include "device_run.h"

namespace theseus::testing {

struct TransferGeometry {
  uint32_t slots = 3;
  uint32_t slot_bytes = 256;
  uint32_t lines = 17;    // of an LL slot
  uint64_t messages = 0;  // that every link has carried before; a multiple of `slots`
  // Posted words bear numbers that are to come, as from 2^16 messages ago; and lines, as from 2^32.
  bool old_words = false;
  bool old_lines = false;
};

class TransferWorld {
 public:
  TransferWorld(int ranks, const TransferGeometry& geometry) : geometry_(geometry) {
    for (int rank = 0; rank < ranks; ++rank) ranks_.push_back(std::make_unique<Rank>());
  }

  // Asked for by both ranks; those of one pair keep this order. `expected`: elements as the receiver has it.
  void add(int from, int to, size_t bytes, uint32_t ways, uint64_t skew = 0) {
    add(from, to, bytes, bytes, ways, skew);
  }
  void add(int from, int to, size_t bytes, size_t expected, uint32_t ways, uint64_t skew) {
    Data& data = *data_.emplace_back(std::make_unique<Data>());
    std::mt19937_64 random(data_.size());
    data.sent.resize(bytes + skew);
    for (uint8_t& byte : data.sent) byte = static_cast<uint8_t>(random());
    data.received.assign(std::max(bytes, expected) + 2 * skew, 0);
    data.skew = skew;
    data.bytes = bytes;
    queue(from, to, true)
        .push_back({data.sent.data() + skew, bytes, {bytes, 7, {}, 9, static_cast<uint16_t>(from)}, ways, 0});
    queue(to, from, false)
        .push_back(
            {data.received.data() + 2 * skew, expected, {expected, 7, {}, 9, static_cast<uint16_t>(to)}, ways, 0});
  }

  // One launch a rank for what was added since the last; the requests stay valid until the next call.
  std::vector<KernelLaunch> launches(emu::Entry entry, uint32_t blocks, uint32_t threads) {
    std::vector<KernelLaunch> launches;
    for (const auto& rank : ranks_) {
      rank->finish(*this);
      launches.push_back({entry, &rank->request, blocks, threads});
    }
    return launches;
  }
  bool all_arrived() const {
    for (const auto& data : data_) {
      for (size_t i = 0; i < data->bytes; ++i)
        if (data->received[2 * data->skew + i] != data->sent[data->skew + i]) return false;
    }
    return true;
  }
  void abort() {
    for (const auto& rank : ranks_) __atomic_store_n(&rank->abort, 1u, __ATOMIC_RELAXED);
  }
  uint64_t fault(int rank) const { return ranks_[static_cast<size_t>(rank)]->fault; }
  const device::TransferMismatch& found(int rank, uint32_t block) const {
    return ranks_[static_cast<size_t>(rank)]->found[block];
  }

 private:
  struct alignas(16) Vector {
    uint8_t bytes[16] = {};
  };
  struct Connection {
    std::vector<Vector> slots, lines;
    std::vector<device::U64> posted;
    device::U64 taken = 0;
    device::Link ends[2] = {};  // sender's, receiver's
  };
  struct Data {
    std::vector<uint8_t> sent, received;
    size_t skew = 0, bytes = 0;
  };
  struct Rank {
    std::map<std::tuple<int, int, bool>, std::vector<device::Transfer>> queues;  // own rank, peer, whether it sends
    std::vector<device::TransferLane> lanes;
    std::vector<device::Transfer> transfers;
    std::vector<device::TransferCursor> cursors;
    std::vector<device::TransferMismatch> found;
    device::U32 abort = 0;
    device::U64 fault = 0;
    device::TransferRequest request = {};

    void finish(TransferWorld& world) {
      lanes.clear();
      transfers.clear();
      for (const auto& [key, queue] : queues) {
        const auto [own, peer, sends] = key;
        const auto first = static_cast<uint32_t>(transfers.size());
        transfers.insert(transfers.end(), queue.begin(), queue.end());
        uint32_t ways = 0;
        for (const device::Transfer& transfer : queue) ways = std::max(ways, transfer.ways);
        for (uint32_t way = 0; way < ways; ++way) {
          Connection& connection = sends ? world.connection(own, peer, way) : world.connection(peer, own, way);
          lanes.push_back(
              {&connection.ends[sends ? 0 : 1], first, static_cast<uint32_t>(transfers.size()), way, sends ? 1u : 0u});
        }
      }
      queues.clear();
      cursors.assign(lanes.size(), {0xcdcd, 0xcdcd, 0});
      found.resize(64);
      request = {};
      request.cursors = cursors.data();
      request.abort = &abort;
      request.fault = &fault;
      request.found = found.data();
      request.lane_count = static_cast<uint32_t>(lanes.size());
      if (lanes.size() <= device::kFewLanes && transfers.size() <= device::kFewTransfers) {
        std::copy(lanes.begin(), lanes.end(), request.few_lanes);
        std::copy(transfers.begin(), transfers.end(), request.few_transfers);
      } else {
        request.lanes = lanes.data();
        request.transfers = transfers.data();
      }
    }
  };

  std::vector<device::Transfer>& queue(int rank, int peer, bool sends) {
    return ranks_[static_cast<size_t>(rank)]->queues[{rank, peer, sends}];
  }

  Connection& connection(int from, int to, uint32_t way) {
    std::unique_ptr<Connection>& known = connections_[{from, to, way}];
    if (known != nullptr) return *known;
    known = std::make_unique<Connection>();
    known->slots.resize(size_t{geometry_.slots} * geometry_.slot_bytes / sizeof(Vector));
    known->lines.resize(size_t{geometry_.slots} * geometry_.lines);
    known->posted.resize(geometry_.slots);
    auto* const words = reinterpret_cast<device::U64*>(known->lines.data());
    // The numbers of the messages that are to use each slot some rounds from now.
    const uint64_t due = geometry_.messages + 1 + 13 * geometry_.slots;
    for (size_t i = 0; geometry_.old_lines && i < 2 * known->lines.size(); ++i) {
      words[i] = (due + i / 2 / geometry_.lines) << 32 | 0x5555;
    }
    for (size_t i = 0; geometry_.old_words && i < geometry_.slots; ++i) {
      known->posted[i] = device::posted_word(due + i, 0, 32);
    }
    known->taken = geometry_.messages;
    for (device::Link& end : known->ends) {
      end = {known->slots[0].bytes, known->posted.data(), reinterpret_cast<device::U64*>(known->lines.data()),
             &known->taken,         geometry_.messages,   static_cast<uint32_t>(geometry_.messages % geometry_.slots),
             geometry_.slot_bytes,  geometry_.slots,      geometry_.lines};
    }
    return *known;
  }

  TransferGeometry geometry_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::unique_ptr<Data>> data_;
  std::map<std::tuple<int, int, uint32_t>, std::unique_ptr<Connection>> connections_;
};

}  // namespace theseus::testing
