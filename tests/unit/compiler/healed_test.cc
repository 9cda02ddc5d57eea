// Schedules around slow NICs are right whatever their arguments, and load NICs as these say.
#include "compiler/healed.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>

#include "compiler/compile.h"
#include "compiler/healed_arguments.h"
#include "compiler/registry.h"
#include "compiler/verify.h"
#include "unit/compiler/simulator.h"

namespace theseus {
namespace {

using testing::RunOptions;
using testing::simulate;

constexpr Collective kMakes[] = {Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter,
                                 Collective::Broadcast, Collective::AllToAll};

std::string joined(const std::vector<int64_t>& values) {
  std::string text;
  for (const int64_t value : values) text += (text.empty() ? "" : ",") + std::to_string(value);
  return text;
}

// `total` split at random into `parts`; often some get nothing.
std::vector<int64_t> split(int64_t total, size_t parts, std::mt19937_64& random) {
  std::vector<int64_t> result(parts, 0);
  const size_t used = random() % parts + 1;
  for (int64_t n = 0; n < total; ++n) ++result[random() % used];
  std::shuffle(result.begin(), result.end(), random);
  return result;
}

struct Shape {
  int hosts, locals, rails, chunks;
};

// Shares and quotas (or weights) at random, for every root host where the collective has one.
std::string random_arguments(const Shape& shape, Collective collective, std::mt19937_64& random) {
  HealedArguments arguments{shape.hosts, shape.rails, shape.chunks, {}};
  std::string text = "hosts=" + std::to_string(shape.hosts) + ";rails=" + std::to_string(shape.rails) +
                     ";chunks=" + std::to_string(shape.chunks);
  const auto hosts = static_cast<size_t>(shape.hosts);
  for (int root = 0; root < (collective == Collective::Broadcast ? shape.hosts : 1); ++root) {
    HealedVariant variant;
    if (collective == Collective::Broadcast) {
      variant.root_host = root;
      text += ";root=" + std::to_string(root);
    }
    const auto shares = split(shape.chunks, hosts, random);
    variant.shares.assign(shares.begin(), shares.end());
    text += ";shares=" + joined(shares);
    if (random() % 4 == 0) {
      std::vector<int64_t> weights(2 * hosts * static_cast<size_t>(shape.rails));
      for (int64_t& weight : weights) weight = static_cast<int64_t>(random() % 100) + 1;
      const auto half = weights.begin() + static_cast<std::ptrdiff_t>(weights.size() / 2);
      text += ";out=" + joined({weights.begin(), half}) + ";in=" + joined({half, weights.end()});
      continue;
    }
    const auto messages = messages_between(arguments, variant, collective, shape.locals);
    std::vector<int64_t> quotas;
    for (size_t pair = 0; pair < messages.size(); ++pair) {
      if (pair / hosts == pair % hosts) continue;
      const auto row = split(messages[pair], static_cast<size_t>(shape.rails), random);
      quotas.insert(quotas.end(), row.begin(), row.end());
    }
    text += ";quotas=" + joined(quotas);
  }
  return text;
}

Plan whole_plan(const Algorithm& algorithm, const Topology& topology) {
  CompileOptions options;
  options.scheduling = Scheduling::PerConnection;
  auto plan = compile(algorithm, topology, options);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return std::move(*plan);
}

void expect_right(const Plan& plan, uint64_t seed) {
  for (const int slots : {1, 8}) {
    VerifyOptions options;
    options.slots = slots;
    options.any_count = true;
    const Status status = verify(plan, options);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  const bool in_place = plan.collective != Collective::AllToAll && seed % 2 == 0;
  for (const int64_t count : {int64_t{1}, int64_t{2} * plan.chunks_per_block + 3}) {
    ASSERT_EQ(simulate(plan, RunOptions{count, 1, 2, in_place, false, seed}), "") << "count " << count;
  }
}

TEST(Healed, EveryPlanIsProvenWhateverItsArguments) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 160; ++round) {
    const Shape shape{2 + static_cast<int>(random() % 7), 1 + static_cast<int>(random() % 4),
                      1 + static_cast<int>(random() % 4), 1 + static_cast<int>(random() % 13)};
    const Topology topology = uniform_hosts(shape.hosts, shape.locals, shape.rails);
    const Collective collective = kMakes[round % 5];
    const std::string arguments = random_arguments(shape, collective, random);
    const int root = static_cast<int>(random() % static_cast<uint64_t>(shape.hosts * shape.locals));
    SCOPED_TRACE(std::string(name_of(collective)) + " " + std::to_string(shape.locals) + " ranks a host, root " +
                 std::to_string(root) + ", " + arguments);
    const auto algorithm = build("healed:" + arguments, collective, topology, root);
    ASSERT_TRUE(algorithm.ok()) << algorithm.status().message();
    expect_right(whole_plan(*algorithm, topology), static_cast<uint64_t>(round));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(Healed, HostsMayBeInterleaved) {
  const Topology topology{{3, 9, 3, 9, 1, 1}, 2};
  std::mt19937_64 random(3);
  for (const Collective collective : kMakes) {
    const std::string arguments = random_arguments({3, 2, 2, 9}, collective, random);
    const auto algorithm = build("healed:" + arguments, collective, topology, 3);
    ASSERT_TRUE(algorithm.ok()) << algorithm.status().message();
    expect_right(whole_plan(*algorithm, topology), 2);
  }
}

// Messages by (host, host, rail).
std::map<std::tuple<int, int, int>, int> loads_of(const Algorithm& algorithm, const Topology& topology) {
  std::map<std::tuple<int, int, int>, int> loads;
  for (const Transfer& t : algorithm.transfers) {
    const int from = topology.host_of_rank[static_cast<size_t>(t.src)];
    const int to = topology.host_of_rank[static_cast<size_t>(t.dst)];
    if (from != to) ++loads[{from, to, t.rail}];
  }
  return loads;
}

TEST(Healed, EveryPairAndRailCarriesItsQuota) {
  std::mt19937_64 random(11);
  for (const int locals : {1, 3}) {
    for (const Collective collective : kMakes) {
      const Shape shape{4, locals, 3, 20};
      const Topology topology = uniform_hosts(4, locals, 3);
      std::string text = random_arguments(shape, collective, random);
      while (text.find("out=") != std::string::npos) text = random_arguments(shape, collective, random);
      const HealedArguments arguments = *parse_healed(text);
      for (const HealedVariant& variant : arguments.variants) {
        const int root = std::max(variant.root_host, 0) * locals;
        auto loads = loads_of(*build("healed:" + text, collective, topology, root), topology);
        auto quota = variant.quotas.begin();
        for (int i = 0; i < 4; ++i) {
          for (int j = 0; j < 4; ++j) {
            for (int r = 0; r < 3 && i != j; ++r) EXPECT_EQ((loads[{i, j, r}]), *quota++) << name_of(collective);
          }
        }
      }
    }
  }
}

// What a NIC carries is what its weights say, give or take two messages, though every pair is rounded for itself.
TEST(Healed, WeightsAreKeptByNicsNotOnlyByPairs) {
  const int hosts = 16;
  const int rails = 8;
  const Topology topology = uniform_hosts(hosts, 1, rails);
  std::string weights;
  for (int i = 0; i < hosts * rails; ++i) weights += (i > 0 ? "," : "") + std::string(i == 3 ? "2" : "16");
  const std::string text = "hosts=16;rails=8;chunks=160;shares=10x16;out=" + weights + ";in=" + weights;
  std::map<std::pair<int, int>, int> out;
  for (const auto& [key, messages] : loads_of(*build("healed:" + text, Collective::AllReduce, topology), topology)) {
    out[{std::get<0>(key), std::get<2>(key)}] += messages;
  }
  for (int r = 0; r < rails; ++r) {
    const double host0 = 15 * 20 * (r == 3 ? 2.0 : 16.0) / (7 * 16 + 2);
    EXPECT_NEAR((out[{0, r}]), host0, 2.0);
    EXPECT_NEAR((out[{5, r}]), 14 * 20 / 8.0 + 20 * (r == 3 ? 2.0 : 16.0) / (7 * 16 + 2), 2.0);
  }
}

// A connection has one arrive at each q-th part of the time, whichever chunks they are: rails do not take turns.
TEST(Healed, RailsOfAPairWorkFromBeginningToEnd) {
  const Topology topology = uniform_hosts(3, 1, 2);
  const std::string text = "hosts=3;rails=2;chunks=90;shares=30x3;quotas=50,10,40,20x5";
  const auto refused = build("healed:" + text, Collective::AllReduce, topology);
  EXPECT_FALSE(refused.ok());
  const std::string good = "hosts=3;rails=2;chunks=90;shares=30x3;quotas=50,10,40,20,40,20,40,20,40,20,40,20";
  const auto algorithm = build("healed:" + good, Collective::AllReduce, topology);
  ASSERT_TRUE(algorithm.ok()) << algorithm.status().message();
  std::map<std::tuple<int, int, int>, std::vector<int>> steps;
  int last = 0;
  for (const Transfer& t : algorithm->transfers) {
    steps[{t.src, t.dst, t.rail}].push_back(t.step);
    last = std::max(last, t.step);
  }
  for (const auto& [connection, of] : steps) {
    for (size_t n = 0; n < of.size(); ++n) {
      const double due = static_cast<double>(n + 1) / static_cast<double>(of.size());
      EXPECT_NEAR((of[n] * 9.0 / last - 1) / 8, due, 0.02);
    }
  }
}

// The second half hardly waits for the first: chunks are reduced before it is their turn on the rails that take them.
TEST(Healed, ChunksAreReducedBeforeTheyAreDueToLeave) {
  const std::string text =
      "hosts=4;rails=4;chunks=256;shares=30,75,75,76;"
      "quotas=9,32x3,9,32x3,10,32x3,9,32x3,38,37,38,37,38,38,38,37,9,32x3,38,37,37,38,38,38,37,38,10,32x3,38x2,37,38,"
      "38,38,37,38";
  const Topology topology = uniform_hosts(4, 1, 4);
  const auto algorithm = build("healed:" + text, Collective::AllReduce, topology);
  ASSERT_TRUE(algorithm.ok()) << algorithm.status().message();
  std::map<int, int> ready;
  std::map<std::tuple<int, int, int>, std::vector<std::pair<int, int>>> sent;
  int last = 0;
  for (const Transfer& t : algorithm->transfers) {
    if (t.op == TransferOp::Reduce) ready[t.chunk] = std::max(ready[t.chunk], t.step);
    sent[{t.src, t.dst, t.rail}].emplace_back(t.step, t.op == TransferOp::Copy ? t.chunk : -1);
    last = std::max(last, t.step);
  }
  int late = 0;
  int handed_out = 0;
  for (const auto& [connection, messages] : sent) {
    for (size_t n = 1; n < messages.size(); ++n) {
      if (messages[n].second < 0) continue;
      ++handed_out;
      late += ready[messages[n].second] >= messages[n - 1].first ? 1 : 0;
      EXPECT_LT(ready[messages[n].second] - messages[n - 1].first, last / 50);
    }
  }
  EXPECT_GT(handed_out, 700);
  EXPECT_LT(late, handed_out / 20) << "of " << handed_out;
}

TEST(Healed, EachConnectionHasAThreadBlockOfItsOwn) {
  std::mt19937_64 random(5);
  const Topology topology = uniform_hosts(4, 1, 4);
  const std::string arguments = random_arguments({4, 1, 4, 64}, Collective::AllReduce, random);
  const Plan plan = whole_plan(*build("healed:" + arguments, Collective::AllReduce, topology), topology);
  for (const RankPlan& part : plan.rank_plans) {
    EXPECT_LE(part.connections.size(), 24u);
    EXPECT_EQ(part.thread_blocks.size(), part.connections.size());
  }
}

TEST(Healed, EqualTextsGiveEqualPlansAndOthersOtherNames) {
  std::mt19937_64 random(9);
  const Topology topology = uniform_hosts(3, 2, 2);
  const std::string one = "healed:" + random_arguments({3, 2, 2, 12}, Collective::AllReduce, random);
  const std::string two = "healed:" + random_arguments({3, 2, 2, 12}, Collective::AllReduce, random);
  const Plan a = whole_plan(*build(one, Collective::AllReduce, topology), topology);
  const Plan b = whole_plan(*build(one, Collective::AllReduce, topology), topology);
  EXPECT_EQ(serialize(a), serialize(b));
  EXPECT_NE(a.name, whole_plan(*build(two, Collective::AllReduce, topology), topology).name);
}

TEST(HealedArguments, RefusalsNameTheField) {
  const std::string head = "hosts=3;rails=2;chunks=6;";
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "hosts, rails and chunks"},
      {"hosts=1", "'hosts' must be a number from 2"},
      {"hosts=3;hosts=3", "'hosts' comes twice"},
      {"hosts=99999999999999999999", "'hosts'"},
      {"hosts=256;rails=64;chunks=1;shares=1", "too many"},
      {"rails", "no field"},
      {head + "speed=3", "no field 'speed'"},
      {head + "shares=2,2", "'shares' must be 3 numbers"},
      {head + "shares=2,2,2,2", "'shares' must be 3 numbers"},
      {head + "shares=2,2,2,", "'shares' must be 3 numbers"},
      {head + "shares=2x9999999", "'shares' must be 3 numbers"},
      {head + "shares=2,-2,6", "'shares' must be 3 numbers"},
      {head + "shares=2x3", "either quotas, or the weights"},
      {head + "shares=2,2,3;quotas=2x12", "add up to 7, not to the 6 chunks"},
      {head + "shares=2x3;quotas=3,2x11", "from host 0 to host 1, but their quotas add up to 5"},
      {head + "shares=2x3;out=1x6", "go together"},
      {head + "shares=2x3;out=0x6;in=1x6", "no rail has a weight from host 0 to host 1"},
      {head + "quotas=2x12", "needs the shares"},
      {head + "root=3;shares=2x3;quotas=2x12", "'root' must be a number from 0 to 2"},
      {head + "root=1;shares=2x3;quotas=2x12", "has no root"},
      {head + "shares=2x3;root=1;quotas=2x12", "root must come before"},
      {"hosts=4;rails=2;chunks=8;shares=2x4;quotas=2x24", "are for 4 hosts of 2 rails, not 3 of 2"},
      {std::string(40000, '1'), "bytes long"},
  };
  for (const auto& [text, says] : bad) {
    const auto refused = build("healed:" + text, Collective::AllReduce, uniform_hosts(3, 1, 2));
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_NE(refused.status().message().find(says), std::string::npos) << refused.status().message();
  }
  EXPECT_FALSE(build("healed:" + head + "shares=2x3;quotas=2x12", Collective::Reduce, uniform_hosts(3, 1, 2)).ok());
  EXPECT_FALSE(build("healed:" + head + "shares=2x3;quotas=2x12", Collective::AllReduce, {{0, 0, 1, 2}, 2}).ok());
  EXPECT_TRUE(build("healed:" + head + "shares=2x3;quotas=2x12", Collective::AllReduce, uniform_hosts(3, 1, 2)).ok());
}

TEST(HealedArguments, NoTextBreaksTheReader) {
  std::mt19937_64 random(13);
  const std::string letters = "hostrailchunk=;,x0123456789 quotasinew\n";
  std::mt19937_64 values(1);
  const std::string good = random_arguments({4, 1, 3, 20}, Collective::Broadcast, values);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = good;
    for (uint64_t edits = random() % 4; edits > 0; --edits) {
      const size_t where = random() % text.size();
      if (random() % 2 == 0) text.erase(where, random() % 5);
      text.insert(where % (text.size() + 1), 1, letters[random() % letters.size()]);
    }
    accepted += parse_healed(text).ok() ? 1 : 0;
  }
  EXPECT_GT(accepted, 1000);
}

}  // namespace
}  // namespace theseus
