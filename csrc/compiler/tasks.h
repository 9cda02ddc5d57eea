// What a schedule orders: an algorithm as tasks, with the dependencies and links of each (ResCCL, section 3.2).
//
// A task is what happens at once: one transfer; where `fold` is set, all Reduce transfers that arrive at one rank for
// one chunk in one step, since one Fold instruction takes them; and where ranks exchange (each overwrites what another
// one of them reads in the same step), all transfers that arrive at these ranks, since none of them can go before
// another.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "schedule/algorithm.h"
#include "schedule/places.h"
#include "schedule/topology.h"

namespace theseus {

// What only one task can use at a time. Inside a host: the way from one rank to another. Between hosts: the egress of
// a host's rail, and the ingress of one.
struct Link {
  enum class Kind : uint8_t { Pair, Egress, Ingress };
  Kind kind;
  int32_t from = -1;  // Pair: rank; Egress: host, numbered in order of first rank
  int32_t to = -1;    // Pair: rank; Ingress: host
  int16_t rail = 0;
};

// Where a transfer's two ends find and leave the chunk.
struct TransferEnds {
  Buffer src = Buffer::None;    // what the sender reads
  Buffer local = Buffer::None;  // Reduce: what the receiver combines it with; None where it holds nothing yet
  Buffer dst = Buffer::None;    // what the receiver writes: Output, or Scratch where the chunk is none of its output
  // Reduce: the local operand comes before this one in the order of reduction, but after those before it.
  bool local_before = false;
};

struct TaskGraph {
  ChunkSpace space;
  int rails = 1;
  bool fold = true;
  bool several_hosts = false;
  bool exchanges = false;  // there is a task in which ranks exchange

  // Task by task; those of a task by receiver, and those of a receiver in the order of reduction. Tasks are numbered
  // chunk by chunk, by step, and so that none depends on a later one.
  std::vector<Transfer> transfers;
  std::vector<TransferEnds> ends;       // of each transfer
  std::vector<int32_t> first_transfer;  // of task t: [first_transfer[t], first_transfer[t + 1])
  // Data dependencies, only inside a chunk: read after write, write after read, write after write of what a rank holds
  // of it; but no write after write where somebody has read in between. Those of task t: [first_predecessor[t],
  // first_predecessor[t + 1]).
  std::vector<int32_t> first_predecessor;
  std::vector<int32_t> predecessors;
  std::vector<int32_t> first_link;  // of task t: [first_link[t], first_link[t + 1]), without repetition
  std::vector<int32_t> link_ids;    // indices into `links`
  std::vector<Link> links;
  std::vector<uint8_t> between_hosts;  // of task t: 1 where a transfer of it leaves its host

  int32_t size() const { return static_cast<int32_t>(between_hosts.size()); }
  int32_t chunk_of(int32_t task) const { return transfer(first_transfer[static_cast<size_t>(task)]).chunk; }
  int32_t step_of(int32_t task) const { return transfer(first_transfer[static_cast<size_t>(task)]).step; }
  const Transfer& transfer(int32_t index) const { return transfers[static_cast<size_t>(index)]; }
  std::span<const Transfer> transfers_of(int32_t task) const { return range(transfers, first_transfer, task); }
  std::span<const int32_t> predecessors_of(int32_t task) const { return range(predecessors, first_predecessor, task); }
  std::span<const int32_t> links_of(int32_t task) const { return range(link_ids, first_link, task); }
  // True where transfer `index` arrives by the same instruction as the one before it.
  bool joins_previous(int32_t index) const {
    if (index == 0 || !fold) return false;
    const Transfer& t = transfer(index);
    const Transfer& before = transfer(index - 1);
    return t.op == TransferOp::Reduce && before.dst == t.dst && before.step == t.step && before.chunk == t.chunk;
  }

 private:
  template <class T>
  static std::span<const T> range(const std::vector<T>& values, const std::vector<int32_t>& first, int32_t task) {
    const auto begin = static_cast<size_t>(first[static_cast<size_t>(task)]);
    const auto end = static_cast<size_t>(first[static_cast<size_t>(task) + 1]);
    return {values.data() + begin, end - begin};
  }
};

// Time and memory grow with the number of transfers. Fails with InvalidArgument where the algorithm is malformed (a
// rank out of range, a chunk sent by a rank that does not hold it, two copies that arrive in one step, ...), naming the
// transfer. That the algorithm computes its collective is the verifier's business.
Result<TaskGraph> build_tasks(const Algorithm& algorithm, const Topology& topology, bool fold = true);

}  // namespace theseus
