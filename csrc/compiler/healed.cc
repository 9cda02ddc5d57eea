#include "compiler/healed.h"

#include <algorithm>
#include <utility>

#include "compiler/healed_arguments.h"
#include "compiler/spread.h"
#include "schedule/bytes.h"

namespace theseus {
namespace {

constexpr const char* kPrefix = "healed:";
constexpr int64_t kTicks = 1 << 13;    // the time of the whole plan
constexpr int64_t kLead = kTicks / 8;  // by which the ranks of a host are done with a chunk before it leaves
constexpr int64_t kLag = kTicks / 8;   // of what is handed out behind what is reduced
constexpr int64_t kMostTransfers = 1 << 24;
// Between a chunk's arrival and its next step: one more than what would allow lower() to fuse the two.
constexpr int32_t kGap = 2;

// One message of a pair of hosts.
struct Slot {
  int64_t start;
  int64_t arrival;
  int16_t rail;
};

// All messages from one host to another.
struct PairSlots {
  std::vector<Slot> first;   // in order of arrival
  std::vector<Slot> second;  // in order of departure
};

// How many messages of the second kind a connection carries before its n-th of the first kind.
int64_t seconds_before(int64_t n, int64_t first, int64_t second) {
  // A slow rail brings what is to be reduced two messages earlier than others, lest a late one holds its chunk up.
  const int64_t lag = kLag + 2 * kTicks / (first + second);
  const int64_t due = (n + 1) * kTicks / first - lag;
  return due <= 0 ? 0 : std::min(second, due * second / kTicks);
}

// `first` of the messages are of the first kind, spread over rails as the quotas are.
PairSlots slots_of(const int32_t* quotas, int rails, int64_t first) {
  PairSlots pair;
  int64_t total = 0;
  for (int r = 0; r < rails; ++r) total += quotas[r];
  int64_t before = 0;
  for (int r = 0; r < rails; ++r) {
    const int64_t quota = quotas[r];
    if (quota == 0) continue;
    const int64_t early = first * (before + quota) / total - first * before / total;
    before += quota;
    int64_t taken = 0;  // of the first kind
    for (int64_t s = 0; s < quota; ++s) {
      const Slot slot{s * kTicks / quota, (s + 1) * kTicks / quota, static_cast<int16_t>(r)};
      const bool is_first = taken < early && seconds_before(taken, early, quota - early) <= s - taken;
      taken += is_first ? 1 : 0;
      (is_first ? pair.first : pair.second).push_back(slot);
    }
  }
  const auto by_arrival = [](const Slot& a, const Slot& b) {
    return std::pair(a.arrival, a.rail) < std::pair(b.arrival, b.rail);
  };
  const auto by_start = [](const Slot& a, const Slot& b) {
    return std::pair(a.start, a.rail) < std::pair(b.start, b.rail);
  };
  std::sort(pair.first.begin(), pair.first.end(), by_arrival);
  std::sort(pair.second.begin(), pair.second.end(), by_start);
  return pair;
}

class Healing {
 public:
  Healing(const Topology& topology, const HealedArguments& arguments, const HealedVariant& variant)
      : rank_at_(ranks_by_host(topology)),
        ranks_(static_cast<int>(topology.host_of_rank.size())),
        hosts_(arguments.hosts),
        locals_(static_cast<int>(rank_at_[0].size())),
        rails_(arguments.rails),
        chunks_(arguments.chunks),
        shares_(variant.shares) {}

  // Of the messages from i to j, `first(i, j)` bring something to be reduced or passed on by j.
  template <class First>
  void plan_pairs(const std::vector<int32_t>& quotas, First first) {
    pairs_.resize(static_cast<size_t>(hosts_) * static_cast<size_t>(hosts_));
    for (int i = 0; i < hosts_; ++i) {
      for (int j = 0; j < hosts_; ++j) {
        const size_t pair = pair_index(i, j);
        if (i != j) pairs_[pair] = slots_of(&quotas[pair * static_cast<size_t>(rails_)], rails_, first(i, j));
      }
    }
  }

  void all_reduce() {
    int chunk = 0;
    for (int owner = 0; owner < hosts_; ++owner) {
      for (int u = 0; u < share(owner); ++u, ++chunk) {
        const int lane = u % locals_;
        const int32_t ready = reduce(owner, lane, u, chunk);
        for (int host = 0; host < hosts_; ++host) {
          const int32_t there = host == owner ? ready : hand_out(owner, host, lane, u, chunk, ready);
          to_locals(host, lane, chunk, there + kGap);
        }
      }
    }
  }

  void reduce_scatter() {
    for_each_block_chunk([&](int owner, int lane, int u, int chunk) { reduce(owner, lane, u, chunk); });
  }

  void all_gather() {
    for_each_block_chunk([&](int owner, int lane, int u, int chunk) {
      to_locals(owner, lane, chunk, step_at(int64_t{u} * kTicks / (int64_t{chunks_} * locals_)));
      for (int host = 0; host < hosts_; ++host) {
        if (host == owner) continue;
        const int32_t there = hand_out(owner, host, lane, u, chunk, 0);
        to_locals(host, lane, chunk, there + kGap);
      }
    });
  }

  // The root's host gives every host its share, which that host hands on; its own share goes straight to all.
  void broadcast(int root_host, int root) {
    int chunk = 0;
    for (int owner = 0; owner < hosts_; ++owner) {
      for (int u = 0; u < share(owner); ++u, ++chunk) {
        const int lane = u % locals_;
        int32_t ready = step_at(-kLead);
        if (at(root_host, lane) != root) add(root, at(root_host, lane), ready, chunk, TransferOp::Copy, 0);
        to_locals(root_host, lane, chunk, ready + kGap, root);
        if (owner != root_host) {
          const Slot& slot = pair(root_host, owner).first[static_cast<size_t>(u)];
          ready = step_at(slot.arrival);
          add(at(root_host, lane), at(owner, lane), ready, chunk, TransferOp::Copy, slot.rail);
          to_locals(owner, lane, chunk, ready + kGap);
        }
        for (int host = 0; host < hosts_; ++host) {
          if (host == owner || host == root_host) continue;
          const int32_t there = hand_out(owner, host, lane, u, chunk, ready);
          to_locals(host, lane, chunk, there + kGap);
        }
      }
    }
  }

  void all_to_all() {
    for (int i = 0; i < hosts_; ++i) {
      for (int j = 0; j < hosts_; ++j) {
        int u = 0;
        for (int piece = 0; piece < chunks_; ++piece) {
          for (int turn = 0; turn < locals_; ++turn) {
            for (int lane = 0; lane < locals_; ++lane, ++u) exchange(i, j, lane, (lane + turn) % locals_, piece, u);
          }
        }
      }
    }
  }

  Transfers take() {
    sort_transfers(transfers_);
    return std::move(transfers_);
  }
  int64_t share(int host) const { return shares_[static_cast<size_t>(host)]; }
  // That a host has for each other, where each rank has a block.
  int64_t block_messages() const { return int64_t{chunks_} * locals_; }

 private:
  size_t pair_index(int i, int j) const {
    return static_cast<size_t>(i) * static_cast<size_t>(hosts_) + static_cast<size_t>(j);
  }
  const PairSlots& pair(int i, int j) const { return pairs_[pair_index(i, j)]; }
  int at(int host, int local) const { return rank_at_[static_cast<size_t>(host)][static_cast<size_t>(local)]; }
  void add(int src, int dst, int32_t step, int chunk, TransferOp op, int16_t rail) {
    transfers_.push_back({src, dst, step, chunk, op, rail});
  }

  // Steps of one tick differ by source, so that no two contributions to a chunk arrive in one: such would be folded
  // by one thread block, which then waits for the slower of two connections.
  int32_t step_at(int64_t tick, int source = 0) const {
    return static_cast<int32_t>(((tick + kLead) * hosts_ + source) * 2 * kGap);
  }

  // Host `owner`'s u-th chunk comes together at its rank of that lane; returns the step after which it is whole.
  int32_t reduce(int owner, int lane, int u, int chunk) {
    int32_t ready = 0;
    int64_t earliest = kTicks;
    for (int host = 0; host < hosts_; ++host) {
      if (host == owner) continue;
      const Slot& slot = pair(host, owner).first[static_cast<size_t>(u)];
      earliest = std::min(earliest, slot.start);
      from_locals(host, lane, chunk, step_at(slot.start - kLead));
      // Ranks serve the next host first, so of equal times that of the host before the owner comes first.
      const int32_t step = step_at(slot.arrival, (owner - host + hosts_) % hosts_);
      add(at(host, lane), at(owner, lane), step, chunk, TransferOp::Reduce, slot.rail);
      ready = std::max(ready, step);
    }
    from_locals(owner, lane, chunk, step_at(earliest - kLead));
    return ready;
  }

  // To one host; returns the step in which it is there.
  int32_t hand_out(int owner, int host, int lane, int u, int chunk, int32_t ready) {
    const Slot& slot = pair(owner, host).second[static_cast<size_t>(u)];
    const int32_t step = std::max(step_at(slot.arrival), ready + kGap);
    add(at(owner, lane), at(host, lane), step, chunk, TransferOp::Copy, slot.rail);
    return step;
  }

  void from_locals(int host, int lane, int chunk, int32_t step) {
    for (int peer = 0; peer < locals_; ++peer) {
      if (peer != lane) add(at(host, peer), at(host, lane), step, chunk, TransferOp::Reduce, 0);
    }
  }
  void to_locals(int host, int lane, int chunk, int32_t step, int skipped = -1) {
    for (int peer = 0; peer < locals_; ++peer) {
      const int rank = at(host, peer);
      if (peer != lane && rank != skipped) add(at(host, lane), rank, step, chunk, TransferOp::Copy, 0);
    }
  }

  // The chunks of a host's blocks, its ranks in turn.
  template <class Visit>
  void for_each_block_chunk(Visit visit) {
    for (int host = 0; host < hosts_; ++host) {
      for (int u = 0; u < chunks_ * locals_; ++u) {
        const int lane = u % locals_;
        visit(host, lane, u, at(host, lane) * chunks_ + u / locals_);
      }
    }
  }

  void exchange(int from, int to, int lane, int peer, int piece, int u) {
    const int src = at(from, lane);
    const int dst = at(to, peer);
    if (src == dst) return;
    const int chunk = (src * ranks_ + dst) * chunks_ + piece;
    if (from == to) {
      add(src, dst, 0, chunk, TransferOp::Copy, 0);
    } else {
      const Slot& slot = pair(from, to).second[static_cast<size_t>(u)];
      add(src, dst, step_at(slot.arrival), chunk, TransferOp::Copy, slot.rail);
    }
  }

  const std::vector<std::vector<int>> rank_at_;  // [host][local]
  const int ranks_;
  const int hosts_;
  const int locals_;
  const int rails_;
  const int chunks_;
  const std::vector<int32_t>& shares_;
  std::vector<PairSlots> pairs_;  // [i * hosts + j]
  Transfers transfers_;
};

bool has_shares(Collective collective) {
  return collective == Collective::AllReduce || collective == Collective::Broadcast;
}

Status check_cluster(const HealedArguments& arguments, const TopologySummary& summary) {
  const auto refuse = [](const std::string& what) { return Status::argument("healed: " + what); };
  if (summary.ranks_per_host == 0) return refuse("it needs the same number of ranks on every host");
  if (summary.hosts == arguments.hosts && summary.rails == arguments.rails) return {};
  return refuse("the arguments are for " + std::to_string(arguments.hosts) + " hosts of " +
                std::to_string(arguments.rails) + " rails, not " + std::to_string(summary.hosts) + " of " +
                std::to_string(summary.rails));
}

int host_of(const Topology& topology, int rank) {
  const auto hosts = ranks_by_host(topology);
  const auto holds = [&](const std::vector<int>& host) {
    return std::find(host.begin(), host.end(), rank) != host.end();
  };
  return static_cast<int>(std::find_if(hosts.begin(), hosts.end(), holds) - hosts.begin());
}

Result<const HealedVariant*> variant_for(const HealedArguments& arguments, Collective collective, int root_host) {
  const auto refuse = [](const std::string& what) { return Status::argument("healed: " + what); };
  const int wanted = collective == Collective::Broadcast ? root_host : -1;
  for (const HealedVariant& variant : arguments.variants) {
    if (variant.root_host != wanted) continue;
    if (has_shares(collective) && variant.shares.empty()) {
      return refuse(std::string(name_of(collective)) + " needs the shares of the hosts");
    }
    return &variant;
  }
  if (wanted < 0) return refuse(std::string(name_of(collective)) + " has no root, but the arguments name one");
  return refuse("the arguments have no part for roots on host " + std::to_string(wanted));
}

Status check_size(const HealedArguments& arguments, Collective collective, const TopologySummary& summary) {
  const int64_t each = collective == Collective::AllToAll ? int64_t{summary.ranks} * summary.ranks
                       : has_shares(collective)           ? 2 * int64_t{summary.ranks}
                                                          : int64_t{summary.ranks} * summary.ranks;
  if (each * arguments.chunks <= kMostTransfers) return {};
  return Status::argument("healed: " + std::to_string(arguments.chunks) + " chunks are too many for " +
                          std::to_string(summary.ranks) + " ranks");
}

void add_transfers(Healing& healing, Collective collective, const std::vector<int32_t>& quotas, int root_host,
                   int root) {
  const auto none = [](int, int) { return int64_t{0}; };
  switch (collective) {
    case Collective::AllReduce:
      healing.plan_pairs(quotas, [&](int, int j) { return healing.share(j); });
      return healing.all_reduce();
    case Collective::Broadcast:
      healing.plan_pairs(quotas, [&](int i, int j) { return i == root_host ? healing.share(j) : 0; });
      return healing.broadcast(root_host, root);
    case Collective::ReduceScatter:
      healing.plan_pairs(quotas, [&](int, int) { return healing.block_messages(); });
      return healing.reduce_scatter();
    case Collective::AllGather: healing.plan_pairs(quotas, none); return healing.all_gather();
    default: healing.plan_pairs(quotas, none); return healing.all_to_all();
  }
}

}  // namespace

bool is_healed(const std::string& name) { return name.rfind(kPrefix, 0) == 0; }

Result<Algorithm> healed(const std::string& arguments, Collective collective, const Topology& topology, int root) {
  constexpr Collective kMakes[] = {Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter,
                                   Collective::Broadcast, Collective::AllToAll};
  if (std::find(std::begin(kMakes), std::end(kMakes), collective) == std::end(kMakes)) {
    return Status::argument(std::string("healed is not made for ") + name_of(collective));
  }
  const Result<HealedArguments> parsed = parse_healed(arguments);
  if (!parsed.ok()) return parsed.status();
  const TopologySummary summary = summary_of(topology);
  THESEUS_TRY(check_cluster(*parsed, summary));
  THESEUS_TRY(check_size(*parsed, collective, summary));
  const int root_host = host_of(topology, root);
  const Result<const HealedVariant*> variant = variant_for(*parsed, collective, root_host);
  if (!variant.ok()) return variant.status();
  const auto messages = messages_between(*parsed, **variant, collective, summary.ranks_per_host);
  const Result<std::vector<int32_t>> quotas = quotas_of(*parsed, **variant, messages);
  if (!quotas.ok()) return quotas.status();

  Healing healing(topology, *parsed, **variant);
  add_transfers(healing, collective, *quotas, root_host, root);
  const int blocks = collective == Collective::AllToAll ? summary.ranks * summary.ranks
                     : has_shares(collective)           ? 1
                                                        : summary.ranks;
  Algorithm algorithm;
  // Plans are told apart by their names.
  algorithm.name = "healed(" + std::to_string(hash_bytes(arguments.data(), arguments.size())) + ")";
  algorithm.collective = collective;
  algorithm.ranks = summary.ranks;
  algorithm.chunks = blocks * parsed->chunks;
  algorithm.root = collective == Collective::Broadcast ? root : 0;
  algorithm.transfers = healing.take();
  return algorithm;
}

}  // namespace theseus
