// The figures of resource_tree.py: schedules that replace one another, run by 4 ranks (one a host, 4 rails) in one
// thread over real TCP connections of the loopback network, from the resource tree and built anew each.
//
//     resource_tree SCHEDULES SET-UPS
//
// Prints lines of "name value": seconds, bytes a rank, or counts a rank and schedule.
#include <malloc.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "compiler/compile.h"
#include "compiler/registry.h"
#include "executor/host_builder.h"
#include "net/process_server.h"
#include "resource/tree.h"
#include "transport/tcp_links.h"

namespace theseus {
namespace {

constexpr int kRanks = 4;
constexpr int kRails = 4;
constexpr int kPieces = 16;  // of the data, each with a ring of its own: four a rail
constexpr size_t kCount = 16 << 10;
constexpr size_t kSlotBytes = 16 << 10;

[[noreturn]] void give_up(const Status& status) {
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}
template <class T>
T take(Result<T> result) {
  if (!result.ok()) give_up(result.status());
  return std::move(*result);
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
double heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<double>(info.uordblks + info.hblkhd);
}
// What it held, a rank.
template <class T>
double heap_freed_by(std::unique_ptr<T> owned) {
  const double before = heap_bytes();
  owned.reset();
  return (before - heap_bytes()) / kRanks;
}
double quantile(std::vector<double> values, double at) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(at * static_cast<double>(values.size())))];
}
void print(const std::string& name, double value) { std::printf("%s %.9g\n", name.c_str(), value); }

// How slow each NIC is: of its four pieces, so many go over other rails.
using Degrees = std::array<std::array<int, kRails>, kRanks>;

// A ring for every piece, but for those that leave a slow NIC alone.
Plan rerouted(const Degrees& slow) {
  static const Algorithm rings = take(build("ring", Collective::AllReduce, uniform_hosts(kRanks, 1, kPieces), 0));
  Algorithm algorithm = rings;
  for (Transfer& transfer : algorithm.transfers) {
    const int piece = transfer.rail;
    const int rail = piece % kRails;
    const int degree = std::max(slow[transfer.src][rail], slow[transfer.dst][rail]);
    const bool moves = piece / kRails < degree;
    transfer.rail = static_cast<int16_t>(moves ? (rail + 1 + piece / kRails) % kRails : rail);
  }
  CompileOptions options;
  options.scheduling = Scheduling::PerConnection;
  options.fuse = true;
  return take(compile(algorithm, uniform_hosts(kRanks, 1, kRails), options));
}

// Schedules for one health map after the other; from one to the next, one NIC changes.
std::vector<std::shared_ptr<const Plan>> make_plans(size_t count) {
  std::mt19937_64 random(1);
  Degrees slow = {};
  std::vector<std::shared_ptr<const Plan>> plans;
  while (plans.size() < count) {
    int& degree = slow[random() % kRanks][random() % kRails];
    degree = static_cast<int>((static_cast<uint64_t>(degree) + 1 + random() % 3) % 4);
    plans.push_back(std::make_shared<const Plan>(rerouted(slow)));
  }
  return plans;
}

class Ports final : public PortSource {
 public:
  explicit Ports(TcpLinks& links) : links_(links) {}
  Result<SendPort*> send_port(int peer, int rail, int channel) override {
    return links_.send_port(peer, rail, channel);
  }
  Result<RecvPort*> recv_port(int peer, int rail, int channel) override {
    return links_.recv_port(peer, rail, channel);
  }

 private:
  TcpLinks& links_;
};

class OnePlan final : public ScheduleSource {
 public:
  Result<SchedulePlan> plan_of(uint64_t) override { return SchedulePlan{plan, true}; }
  size_t piece_bytes(const Program&, const ResourceRequest&) override { return kSlotBytes; }
  std::shared_ptr<const Plan> plan;  // of the schedule that is selected now
};

// The ranks' connections.
struct World {
  World() {
    const CommId communicator = random_id();
    ProcessServer* server = take(ProcessServer::get());
    std::vector<Nic> nics;
    for (int rail = 0; rail < kRails; ++rail) {
      nics.push_back({"lo", {take(Address::parse("127.0.0." + std::to_string(rail + 1)))}});
    }
    std::vector<TcpPeer> peers;
    for (int rank = 0; rank < kRanks; ++rank) {
      peers.push_back({rank, "host" + std::to_string(rank), {}});
      for (const Nic& nic : nics) peers.back().rails.push_back(nic.addresses[0].with_port(server->port()));
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      links.push_back(std::make_unique<TcpLinks>(communicator, rank, peers, nics, kSlotBytes, 4));
      if (Status opened = links.back()->open(); !opened.ok()) give_up(opened);
      ports.emplace_back(*links.back());
    }
  }
  std::vector<std::unique_ptr<TcpLinks>> links;
  std::vector<Ports> ports;
};

// What runs a request on one rank.
struct Runner {
  Execution* execution;
  const Program* program;
  const Shape* shape;
};

class Requests {
 public:
  Requests() : in_(kRanks, std::vector<int32_t>(kCount)), out_(in_) {
    for (int rank = 0; rank < kRanks; ++rank) {
      for (size_t i = 0; i < kCount; ++i) in_[rank][i] = static_cast<int32_t>(i) * (rank + 1);
    }
  }
  void run(World& world, const std::vector<Runner>& runners) {
    ++id_;
    for (int rank = 0; rank < kRanks; ++rank) {
      Binding binding;
      binding.input = in_[rank].data();
      binding.output = out_[rank].data();
      binding.count = kCount;
      binding.type = DataType::Int32;
      binding.tag.signature.count = kCount;
      binding.tag.base = base_hash(binding.tag.signature);
      binding.tag.hash = request_hash(binding.tag.base, id_);
      runners[rank].execution->start(*runners[rank].program, *runners[rank].shape, binding);
    }
    std::vector<bool> done(kRanks);
    for (int open = kRanks; open > 0;) {
      for (int rank = 0; rank < kRanks; ++rank) {
        if (!done[rank]) {
          const Advance state = runners[rank].execution->advance();
          if (state == Advance::Failed) give_up(runners[rank].execution->status());
          done[rank] = state == Advance::Done;
          open -= done[rank] ? 1 : 0;
        }
        if (Status moved = world.links[rank]->progress(); !moved.ok()) give_up(moved);
      }
    }
    for (const std::vector<int32_t>& out : out_) {
      for (size_t i = 0; i < kCount; ++i) {
        if (out[i] != static_cast<int32_t>(i) * 10) give_up(Status::internal("a wrong sum at " + std::to_string(i)));
      }
    }
  }

 private:
  std::vector<std::vector<int32_t>> in_, out_;
  uint32_t id_ = 0;
};

struct Trees {
  explicit Trees(World& world, size_t budget = 64 << 20) {
    for (int rank = 0; rank < kRanks; ++rank) {
      builders.push_back(std::make_unique<HostBuilder>(rank, world.ports[rank], source));
      trees.push_back(std::make_unique<ResourceTree>(*builders.back(), budget));
    }
  }
  std::vector<ResourceTree::Lease> walk(uint64_t schedule, uint64_t family = 0) {
    std::vector<ResourceTree::Lease> leases;
    const ResourceRequest request{family, schedule, {}, HostBuilder::range_of(kCount, DataType::Int32, RedOp::Sum)};
    for (auto& tree : trees) leases.push_back(take(tree->walk(request)));
    return leases;
  }
  Delta counts() const {
    Delta all;
    for (const auto& tree : trees) {
      all.add(tree->statistics().built);
      all.add(tree->statistics().migrated);
    }
    return all;
  }
  size_t bytes() const {
    size_t bytes = 0;
    for (const auto& tree : trees) bytes += tree->bytes();
    return bytes / kRanks;
  }

  OnePlan source;
  std::vector<std::unique_ptr<HostBuilder>> builders;
  std::vector<std::unique_ptr<ResourceTree>> trees;
};

std::vector<Runner> runners_of(const std::vector<ResourceTree::Lease>& leases) {
  std::vector<Runner> runners;
  for (const auto& lease : leases) {
    const HostResources held = host_resources(lease);
    runners.push_back({held.execution, held.program, held.shape});
  }
  return runners;
}

struct Times {
  std::vector<double> set_up;  // resources of all ranks, a rank
  std::vector<double> first;   // that, and the first request
};

void print(const std::string& name, const Times& times) {
  print(name + "_set_up", quantile(times.set_up, 0.5));
  print(name + "_first", quantile(times.first, 0.5));
  print(name + "_first_p99", quantile(times.first, 0.99));
}

void print(const std::string& name, const Delta& delta, double schedules) {
  const double each = schedules * kRanks;
  print(name + "_opened", static_cast<double>(delta.opened) / each);
  print(name + "_made", static_cast<double>(delta.made) / each);
  print(name + "_shared", static_cast<double>(delta.shared) / each);
}

// A schedule as a communicator meets it that has nothing: connections, thread blocks, arena.
void normal_set_up(const std::vector<std::shared_ptr<const Plan>>& plans, int times, Requests& requests) {
  Times taken;
  Delta counts;
  for (int i = 0; i < times; ++i) {
    World world;
    Trees trees(world);
    trees.source.plan = plans[static_cast<size_t>(i) % plans.size()];
    const double begin = now();
    const std::vector<ResourceTree::Lease> leases = trees.walk(1);
    taken.set_up.push_back((now() - begin) / kRanks);
    requests.run(world, runners_of(leases));
    taken.first.push_back(now() - begin);
    counts.add(trees.counts());
  }
  print("normal", taken);
  print("normal", counts, times);
}

// One after the other, each replacing the one before.
void replacing(const std::vector<std::shared_ptr<const Plan>>& plans, World& world, Requests& requests) {
  auto owned = std::make_unique<Trees>(world);
  Trees& trees = *owned;
  Times taken;
  std::vector<double> again, walks, recalls;
  Delta first;
  for (size_t i = 0; i < plans.size(); ++i) {
    trees.source.plan = plans[i];
    const double begin = now();
    std::vector<ResourceTree::Lease> leases = trees.walk(i);
    const double walked = now();
    requests.run(world, runners_of(leases));
    const double ran = now();
    if (i == 0) first = trees.counts();
    if (i > 0) taken.set_up.push_back((walked - begin) / kRanks);
    if (i > 0) taken.first.push_back(ran - begin);
    requests.run(world, runners_of(leases));
    again.push_back(now() - ran);
    const ResourceTree::Trail trail = leases[0].trail();
    leases.clear();
    constexpr int kTimes = 100;
    const double hit = now();
    for (int n = 0; n < kTimes; ++n) trees.walk(i);
    const double recall = now();
    for (int n = 0; n < kTimes; ++n) trees.trees[0]->recall(trail);
    walks.push_back((recall - hit) / kTimes / kRanks);
    recalls.push_back((now() - recall) / kTimes);
  }
  trees.source.plan = nullptr;
  print("tree_bytes", static_cast<double>(trees.bytes()));
  Delta counts = trees.counts();
  counts = {counts.made - first.made, counts.shared - first.shared, counts.opened - first.opened, 0};
  print("delta", taken);
  print("delta", counts, static_cast<double>(plans.size() - 1));
  print("tree_heap", heap_freed_by(std::move(owned)));
  print("again_first", quantile(again, 0.5));
  print("walk", quantile(walks, 0.5));
  print("recall", quantile(recalls, 0.5));
}

// As many that have nothing to do with one another, under a budget.
void unrelated(const std::vector<std::shared_ptr<const Plan>>& plans, World& world, Requests& requests) {
  constexpr size_t kBudget = 256 << 10;
  auto owned = std::make_unique<Trees>(world, kBudget);
  Trees& trees = *owned;
  for (size_t i = 0; i < plans.size(); ++i) {
    trees.source.plan = plans[i];
    requests.run(world, runners_of(trees.walk(i, i)));
  }
  trees.source.plan = nullptr;
  print("budget", kBudget);
  print("unrelated_bytes", static_cast<double>(trees.bytes()));
  print("unrelated_heap", heap_freed_by(std::move(owned)));
}

// Each with a program, thread blocks' states and an arena of its own, over the connections that there are; all kept.
void from_scratch(const std::vector<std::shared_ptr<const Plan>>& plans, World& world, Requests& requests) {
  struct Built {
    std::unique_ptr<Program> program;
    Shape shape;
    std::unique_ptr<Execution> execution;
  };
  auto all = std::make_unique<std::vector<std::vector<Built>>>();
  Times taken;
  for (const auto& plan : plans) {
    const double begin = now();
    std::vector<Built> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      Built built{take(Program::build(*plan, rank, world.ports[rank])), {}, std::make_unique<Execution>()};
      built.shape = shape_of(*built.program, {kCount, kSlotBytes, DataType::Int32, RedOp::Sum});
      ranks.push_back(std::move(built));
    }
    taken.set_up.push_back((now() - begin) / kRanks);
    std::vector<Runner> runners;
    for (Built& built : ranks) runners.push_back({built.execution.get(), built.program.get(), &built.shape});
    requests.run(world, runners);
    taken.first.push_back(now() - begin);
    all->push_back(std::move(ranks));
  }
  print("scratch_heap", heap_freed_by(std::move(all)));
  print("scratch", taken);
}

void run(size_t schedules, int set_ups) {
  const std::vector<std::shared_ptr<const Plan>> plans = make_plans(schedules);
  Requests requests;
  normal_set_up(plans, set_ups, requests);
  World world;
  {  // Connections are not part of what is compared: every one is open before.
    Trees trees(world);
    for (size_t i = 0; i < plans.size(); ++i) {
      trees.source.plan = plans[i];
      requests.run(world, runners_of(trees.walk(i)));
    }
  }
  from_scratch(plans, world, requests);
  replacing(plans, world, requests);
  unrelated(plans, world, requests);
}

}  // namespace
}  // namespace theseus

int main(int count, char** words) {
  if (count != 3) {
    std::fprintf(stderr, "resource_tree SCHEDULES SET-UPS\n");
    return 2;
  }
  theseus::run(std::strtoul(words[1], nullptr, 10), std::atoi(words[2]));
}
