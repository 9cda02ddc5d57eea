// Tasks have the dependencies and links that they should; sub-pipelines are what the paper's rules make of them.
#include "compiler/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "compiler/registry.h"

namespace theseus {
namespace {

using Edges = std::vector<std::vector<int32_t>>;

Edges edges_of(const TaskGraph& graph) {
  Edges edges;
  for (int32_t task = 0; task < graph.size(); ++task) {
    const auto before = graph.predecessors_of(task);
    edges.emplace_back(before.begin(), before.end());
    std::sort(edges.back().begin(), edges.back().end());
  }
  return edges;
}

constexpr auto kReduce = TransferOp::Reduce;

TEST(Tasks, DependOnWhoWroteOrReadWhatTheyTouch) {
  // 1 sends what it got from 0: read after write. Then 1 is overwritten: write after read. At last 2 sends what it got,
  // and 0, which sent twice, is overwritten.
  const Algorithm algorithm{"a", Collective::AllReduce,
                            3,   1,
                            0,   {{0, 1, 0, 0, kReduce}, {1, 2, 1, 0, kReduce}, {0, 1, 2, 0, kReduce}, {2, 0, 3, 0}}};
  const TaskGraph graph = *build_tasks(algorithm, single_host(3));
  EXPECT_EQ(edges_of(graph), (Edges{{}, {0}, {1}, {0, 1, 2}}));
}

TEST(Tasks, OfDifferentChunksNeverDepend) {
  const Topology topology = uniform_hosts(2, 2, 1);
  const TaskGraph graph = *build_tasks(*build("hm", Collective::AllReduce, topology), topology);
  for (int32_t task = 0; task < graph.size(); ++task) {
    for (const int32_t before : graph.predecessors_of(task)) {
      EXPECT_EQ(graph.chunk_of(task), graph.chunk_of(before));
      EXPECT_LT(before, task);
    }
  }
}

TEST(Tasks, ReductionsThatArriveTogetherAreOneOrAChain) {
  const Algorithm algorithm{
      "a", Collective::Reduce, 4, 1, 2, {{3, 2, 0, 0, kReduce}, {0, 2, 0, 0, kReduce}, {1, 2, 0, 0, kReduce}}};
  const TaskGraph fold = *build_tasks(algorithm, single_host(4), true);
  ASSERT_EQ(fold.size(), 1);
  EXPECT_EQ(fold.links_of(0).size(), 3u);
  // In order of reduction: 0, 1, own, 3.
  EXPECT_EQ(fold.transfer(0).src, 0);
  EXPECT_EQ(fold.transfer(2).src, 3);
  EXPECT_TRUE(fold.ends[2].local_before);
  EXPECT_FALSE(fold.ends[0].local_before || fold.ends[1].local_before);
  const TaskGraph chain = *build_tasks(algorithm, single_host(4), false);
  EXPECT_EQ(edges_of(chain), (Edges{{}, {0}, {1}}));
}

TEST(Tasks, RanksThatExchangeAreOneTask) {
  // 0 and 1 swap, 2 sends to 0 as well: 0 must have sent before, so all three transfers to 0 and 1 go together.
  const Algorithm swap{
      "a", Collective::AllReduce, 3, 1, 0, {{0, 1, 0, 0, kReduce}, {1, 0, 0, 0, kReduce}, {2, 0, 0, 0, kReduce}}};
  const TaskGraph graph = *build_tasks(swap, single_host(3));
  EXPECT_EQ(graph.size(), 1);
  EXPECT_TRUE(graph.exchanges);
  // A circle of three, too.
  const Algorithm circle{
      "a", Collective::AllReduce, 3, 1, 0, {{0, 1, 0, 0, kReduce}, {1, 2, 0, 0, kReduce}, {2, 0, 0, 0, kReduce}}};
  EXPECT_EQ(build_tasks(circle, single_host(3))->size(), 1);
  // But a line is not: 1 takes what comes after it has sent.
  const Algorithm line{"a", Collective::AllReduce, 3, 1, 0, {{0, 1, 0, 0, kReduce}, {1, 2, 0, 0, kReduce}}};
  const TaskGraph two = *build_tasks(line, single_host(3));
  EXPECT_FALSE(two.exchanges);
  EXPECT_EQ(edges_of(two), (Edges{{}, {0}}));
  EXPECT_EQ(two.transfer(0).src, 1);
}

TEST(Tasks, LinksArePairsInsideHostsAndRailsBetween) {
  const Topology topology = uniform_hosts(2, 2, 2);
  const Algorithm algorithm{
      "a", Collective::Broadcast, 4, 1, 0, {{0, 1, 0, 0}, {0, 2, 0, 0, TransferOp::Copy, 1}, {2, 3, 1, 0}}};
  const TaskGraph graph = *build_tasks(algorithm, topology);
  ASSERT_EQ(graph.size(), 3);
  EXPECT_EQ(graph.between_hosts, (std::vector<uint8_t>{0, 1, 0}));
  ASSERT_EQ(graph.links_of(1).size(), 2u);
  const Link egress = graph.links[static_cast<size_t>(graph.links_of(1)[0])];
  const Link ingress = graph.links[static_cast<size_t>(graph.links_of(1)[1])];
  EXPECT_TRUE(egress.kind == Link::Kind::Egress && egress.from == 0 && egress.rail == 1);
  EXPECT_TRUE(ingress.kind == Link::Kind::Ingress && ingress.to == 1 && ingress.rail == 1);
}

TEST(Tasks, RefuseMalformedAlgorithmsByTransfer) {
  const auto message = [](std::vector<Transfer> transfers) {
    const auto graph = build_tasks({"bad", Collective::Broadcast, 3, 1, 0, std::move(transfers)}, single_host(3));
    return graph.ok() ? std::string() : graph.status().message();
  };
  EXPECT_NE(message({{1, 2, 0, 0}}).find("1 -> 2 of chunk 0 at step 0: rank 1 does not hold"), std::string::npos);
  EXPECT_NE(message({{0, 1, 0, 0}, {0, 1, 0, 0}}).find("occurs twice"), std::string::npos);
  EXPECT_NE(message({{0, 1, 0, 0}, {0, 2, 1, 0}, {1, 2, 1, 0}}).find("copy beside another"), std::string::npos);
  EXPECT_NE(message({{0, 3, 0, 0}}).find("'bad'"), std::string::npos);
}

// ResCCL's rules as they stand, one chunk after the other: slow, and plainly right.
Pipeline plain_hpds(const TaskGraph& graph) {
  Pipeline result;
  const auto tasks = static_cast<size_t>(graph.size());
  result.sub_pipeline.assign(tasks, -1);
  std::vector<std::pair<int, int>> chunks;  // use, chunk
  for (int chunk = 0; chunk < graph.space.chunks(); ++chunk) chunks.emplace_back(0, chunk);
  while (result.order.size() < tasks) {
    std::sort(chunks.begin(), chunks.end());
    std::set<int32_t> busy;
    for (auto& [use, chunk] : chunks) {
      bool added = false;
      for (int32_t task = 0; task < graph.size(); ++task) {
        if (graph.chunk_of(task) != chunk || result.sub_pipeline[static_cast<size_t>(task)] >= 0) continue;
        bool fits = true;
        for (const int32_t p : graph.predecessors_of(task)) {
          const int32_t placed = result.sub_pipeline[static_cast<size_t>(p)];
          const bool bars = placed == result.count && graph.between_hosts[static_cast<size_t>(p)] != 0 &&
                            graph.between_hosts[static_cast<size_t>(task)] == 0;
          fits = fits && placed >= 0 && !bars;
        }
        for (const int32_t link : graph.links_of(task)) fits = fits && !busy.contains(link);
        if (!fits) continue;
        for (const int32_t link : graph.links_of(task)) busy.insert(link);
        result.sub_pipeline[static_cast<size_t>(task)] = result.count;
        result.order.push_back(task);
        added = true;
      }
      if (added) ++use;
    }
    ++result.count;
  }
  return result;
}

TEST(Hpds, IsThePapersAlgorithm) {
  for (const Topology& topology : {single_host(5), uniform_hosts(2, 3, 2), uniform_hosts(3, 2, 1),
                                   uniform_hosts(4, 2, 2), Topology{{7, 7, 7, 3, 3}, 2}}) {
    for (const BuiltIn& entry : built_ins()) {
      for (int c = 0; c < kCollectives; ++c) {
        const auto collective = static_cast<Collective>(c);
        if (!entry.makes(collective)) continue;
        const auto algorithm = build(entry.name, collective, topology);
        if (!algorithm.ok()) continue;
        for (const bool fold : {true, false}) {
          const TaskGraph graph = *build_tasks(*algorithm, topology, fold);
          const Pipeline plain = plain_hpds(graph);
          const Pipeline fast = *schedule_tasks(graph, Scheduling::Hpds);
          EXPECT_EQ(fast.sub_pipeline, plain.sub_pipeline) << algorithm->name << " " << name_of(collective);
          EXPECT_EQ(fast.order, plain.order) << algorithm->name << " " << name_of(collective);
          EXPECT_EQ(fast.count, plain.count);
        }
      }
    }
  }
}

// Three chunks of two steps on two links, L1 between hosts and L2 inside one: the paper's example of three
// sub-pipelines.
TEST(Hpds, WorkedExample) {
  const Topology topology{{0, 1, 1}, 1};
  const Transfer l1{0, 1, 0, 0, kReduce}, l2{1, 2, 0, 0, kReduce};
  const auto task = [](Transfer link, int step, int chunk) {
    link.step = step;
    link.chunk = chunk;
    return link;
  };
  const Algorithm algorithm{
      "example", Collective::AllReduce,
      3,         3,
      0,         {task(l1, 0, 0), task(l2, 1, 0), task(l2, 0, 1), task(l1, 1, 1), task(l1, 0, 2), task(l2, 1, 2)}};
  const TaskGraph graph = *build_tasks(algorithm, topology);
  const Pipeline pipeline = *schedule_tasks(graph, Scheduling::Hpds);
  EXPECT_EQ(pipeline.count, 3);
  // Tasks 2c and 2c + 1 are chunk c's first and second: {0.s1, 1.s1}, {2.s1, 0.s2}, {1.s2, 2.s2}.
  EXPECT_EQ(pipeline.order, (std::vector<int32_t>{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(pipeline.sub_pipeline, (std::vector<int32_t>{0, 1, 0, 2, 1, 2}));
}

// When every link is free at once, how long one micro-batch takes, in halves of a step inside a host.
int32_t makespan(const TaskGraph& graph, const Pipeline& pipeline) {
  std::vector<int32_t> link(graph.links.size(), 0);
  std::vector<int32_t> end(static_cast<size_t>(graph.size()), 0);
  for (const int32_t task : pipeline.order) {
    int32_t start = 0;
    for (const int32_t l : graph.links_of(task)) start = std::max(start, link[static_cast<size_t>(l)]);
    for (const int32_t p : graph.predecessors_of(task)) start = std::max(start, end[static_cast<size_t>(p)]);
    end[static_cast<size_t>(task)] = start + (graph.between_hosts[static_cast<size_t>(task)] != 0 ? 5 : 2);
    for (const int32_t l : graph.links_of(task)) link[static_cast<size_t>(l)] = end[static_cast<size_t>(task)];
  }
  return *std::max_element(end.begin(), end.end());
}

TEST(HpdsImproved, NeverPutsATaskBesideOneThatItDependsOn) {
  const Topology topology = uniform_hosts(3, 2, 2);
  const TaskGraph graph = *build_tasks(*build("hm", Collective::AllReduce, topology), topology);
  const Pipeline pipeline = *schedule_tasks(graph, Scheduling::HpdsImproved);
  for (int32_t task = 0; task < graph.size(); ++task) {
    for (const int32_t before : graph.predecessors_of(task)) {
      EXPECT_LT(pipeline.sub_pipeline[static_cast<size_t>(before)], pipeline.sub_pipeline[static_cast<size_t>(task)]);
    }
  }
}

// Where the paper's rules are far from it: a ring, which they walk one chunk at a time.
TEST(HpdsImproved, ReachesTheBoundOfTheBusiestLinkOnRings) {
  for (const Topology& topology : {single_host(8), uniform_hosts(4, 1, 1), uniform_hosts(4, 4, 4)}) {
    const Algorithm algorithm = *build("ring", Collective::AllGather, topology);
    const TaskGraph graph = *build_tasks(algorithm, topology);
    std::vector<int32_t> load(graph.links.size(), 0);
    for (int32_t task = 0; task < graph.size(); ++task) {
      const bool leaves = graph.between_hosts[static_cast<size_t>(task)] != 0;
      for (const int32_t link : graph.links_of(task)) load[static_cast<size_t>(link)] += leaves ? 5 : 2;
    }
    const int32_t bound = *std::max_element(load.begin(), load.end());
    EXPECT_EQ(makespan(graph, *schedule_tasks(graph, Scheduling::HpdsImproved)), bound);
    EXPECT_GT(makespan(graph, *schedule_tasks(graph, Scheduling::Hpds)), bound);
  }
}

// What every schedule promises.
void expect_ordered(const TaskGraph& graph, const Pipeline& pipeline) {
  ASSERT_EQ(pipeline.order.size(), static_cast<size_t>(graph.size()));
  std::vector<int32_t> place(pipeline.order.size(), -1);
  int32_t last = 0;
  for (size_t i = 0; i < pipeline.order.size(); ++i) {
    const auto task = static_cast<size_t>(pipeline.order[i]);
    EXPECT_EQ(std::exchange(place[task], static_cast<int32_t>(i)), -1);
    EXPECT_GE(pipeline.sub_pipeline[task], last);
    last = pipeline.sub_pipeline[task];
  }
  EXPECT_EQ(pipeline.count, pipeline.order.empty() ? 0 : last + 1);
  for (int32_t task = 0; task < graph.size(); ++task) {
    for (const int32_t before : graph.predecessors_of(task)) {
      EXPECT_LT(place[static_cast<size_t>(before)], place[static_cast<size_t>(task)]);
    }
  }
}

bool shares_links(const TaskGraph& graph, const Pipeline& pipeline) {
  std::set<std::pair<int32_t, int32_t>> used;
  for (int32_t task = 0; task < graph.size(); ++task) {
    for (const int32_t link : graph.links_of(task)) {
      if (!used.insert({pipeline.sub_pipeline[static_cast<size_t>(task)], link}).second) return true;
    }
  }
  return false;
}

TEST(Schedules, KeepOrderAndTheConflictFreeOnesShareNoLink) {
  const Topology topology = uniform_hosts(3, 3, 2);
  for (const BuiltIn& entry : built_ins()) {
    for (int c = 0; c < kCollectives; ++c) {
      const auto collective = static_cast<Collective>(c);
      if (!entry.makes(collective)) continue;
      const TaskGraph graph = *build_tasks(*build(entry.name, collective, topology), topology);
      for (const Scheduling scheduling : {Scheduling::Hpds, Scheduling::HpdsImproved, Scheduling::RoundRobin,
                                          Scheduling::AlgorithmLevel, Scheduling::StageLevel}) {
        SCOPED_TRACE(std::string(entry.name) + " " + name_of(collective) + " " + name_of(scheduling));
        const Pipeline pipeline = *schedule_tasks(graph, scheduling);
        expect_ordered(graph, pipeline);
        const bool is_free = scheduling != Scheduling::AlgorithmLevel && scheduling != Scheduling::StageLevel;
        EXPECT_TRUE(!is_free || !shares_links(graph, pipeline));
      }
    }
  }
}

TEST(Schedules, StagesChangeWhereTheKindOfLinkDoes) {
  const Topology topology = uniform_hosts(2, 2, 1);
  const TaskGraph gather = *build_tasks(*build("hm", Collective::AllGather, topology), topology);
  const TaskGraph reduce = *build_tasks(*build("hm", Collective::AllReduce, topology), topology);
  const auto last = [](const std::vector<int32_t>& stages) { return *std::max_element(stages.begin(), stages.end()); };
  EXPECT_EQ(last(stages_of(gather)), 1);
  EXPECT_EQ(last(stages_of(reduce)), 2);
  EXPECT_FALSE(schedule_tasks(gather, Scheduling::PerConnection).ok());
}

TEST(Schedules, OfNothingAreEmpty) {
  const TaskGraph graph = *build_tasks(*build("hm", Collective::AllReduce, single_host(1)), single_host(1));
  EXPECT_EQ(graph.size(), 0);
  EXPECT_EQ(schedule_tasks(graph, Scheduling::Hpds)->count, 0);
  EXPECT_EQ(schedule_tasks(graph, Scheduling::RoundRobin)->count, 0);
}

}  // namespace
}  // namespace theseus
