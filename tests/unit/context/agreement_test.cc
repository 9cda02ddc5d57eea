#include "context/agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <set>

#include "unit/context/agreement_world.h"
#include "unit/context/random.h"

namespace theseus {
namespace {

std::vector<int> random_hosts(Random& random, uint64_t most) {
  std::vector<int> hosts;
  const uint64_t number = random.between(1, 5);
  for (uint64_t i = random.between(1, most); i > 0; --i)
    hosts.push_back(static_cast<int>(random.below(number)) * 7 - 3);
  return hosts;
}

// One tree over all ranks; one edge less than hosts crosses hosts; nobody is far from the root or has many children.
TEST(AgreementTree, CrossesHostsOnceEach) {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    const std::vector<int> hosts = random_hosts(random, 40);
    const std::vector<AgreementTree> trees = agreement_trees(hosts);
    std::map<int, size_t> sizes;
    for (const int host : hosts) ++sizes[host];
    size_t largest = 0;
    for (const auto& [host, size] : sizes) largest = std::max(largest, size);
    const int most = std::bit_width(sizes.size() - 1) + std::bit_width(largest - 1);
    size_t crossing = 0, edges = 0;
    for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
      const AgreementTree& tree = trees[static_cast<size_t>(rank)];
      ASSERT_LE(static_cast<int>(tree.children.size()), most);
      for (const int child : tree.children) {
        ASSERT_EQ(trees[static_cast<size_t>(child)].parent, rank);
        ++edges;
        crossing += hosts[static_cast<size_t>(child)] != hosts[static_cast<size_t>(rank)] ? 1 : 0;
      }
      int depth = 0;
      for (int at = rank; at != 0; at = trees[static_cast<size_t>(at)].parent) ASSERT_LE(++depth, most);
    }
    ASSERT_EQ(edges, hosts.size() - 1);
    ASSERT_EQ(crossing, sizes.size() - 1);
  }
}

// The paper's reducer, as sets: what a rank has read and can run. Removals are one more set that grows.
struct PaperContext {
  std::set<uint32_t> attributes;
  std::set<uint32_t> schedules;
  std::map<uint32_t, uint64_t> versions;
  std::set<uint32_t> removals;

  std::set<uint32_t> runnable() const {
    std::set<uint32_t> rest;
    std::set_difference(schedules.begin(), schedules.end(), removals.begin(), removals.end(),
                        std::inserter(rest, rest.end()));
    return rest;
  }
};

std::set<uint32_t> intersection(const std::set<uint32_t>& a, const std::set<uint32_t>& b) {
  std::set<uint32_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::inserter(both, both.end()));
  return both;
}

PaperContext reduce(const PaperContext& a, const PaperContext& b) {
  PaperContext both{intersection(a.attributes, b.attributes),
                    intersection(a.schedules, b.schedules),
                    {},
                    intersection(a.removals, b.removals)};
  for (const uint32_t id : both.attributes) both.versions[id] = std::min(a.versions.at(id), b.versions.at(id));
  return both;
}

PaperContext paper_context(const ContextLog& log, uint64_t position, const ScheduleSet& loaded) {
  PaperContext context;
  const Result<Snapshot> snapshot = log.snapshot(position, {});
  for (const Attribute& attribute : snapshot->attributes) {
    context.attributes.insert(attribute.id);
    context.versions[attribute.id] = attribute.version;
  }
  for (uint32_t id = 0; id < log.schedules(); ++id) {
    if (loaded.test(id)) context.schedules.insert(id);
    if (log.removed(id, position)) context.removals.insert(id);
  }
  return context;
}

// Figure 8 to the letter, on sets: the reference that the next test compares with gives what the paper says.
TEST(Reducer, ReferenceGivesFigureEight) {
  const PaperContext m0{{0, 1, 2}, {0, 1}, {{0, 0}, {1, 7}, {2, 0}}, {}};
  const PaperContext m1{{0, 1, 2}, {0, 1, 2}, {{0, 0}, {1, 5}, {2, 2}}, {}};
  const PaperContext both = reduce(m0, m1);
  EXPECT_EQ(both.attributes, (std::set<uint32_t>{0, 1, 2}));
  EXPECT_EQ(both.schedules, (std::set<uint32_t>{0, 1}));
  EXPECT_EQ(both.versions, (std::map<uint32_t, uint64_t>{{0, 0}, {1, 5}, {2, 0}}));
}

// Position and bitmap, reduced and decoded, are what the paper's sets and versions reduce to.
TEST(Reducer, CompactFormEqualsThePapers) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    ContextLog log(9);
    for (uint64_t i = random.between(1, 80); i > 0; --i) ASSERT_TRUE(log.apply(random_record(random, log)).ok());
    std::optional<Offer> compact;
    std::optional<PaperContext> paper;
    for (uint64_t rank = random.between(1, 6); rank > 0; --rank) {
      Offer held;
      held.log_id = log.id();
      held.position = random.chance(0.3) ? log.position() : random.below(log.position() + 1);
      for (uint32_t id = 0; id < log.snapshot(held.position, {})->replaces.size(); ++id) {
        held.loaded.set(id, random.chance(0.8));
      }
      const PaperContext context = paper_context(log, held.position, held.loaded);
      compact = compact ? meet(*compact, held) : held;
      paper = paper ? reduce(*paper, context) : context;
    }
    const Result<Snapshot> snapshot = log.snapshot(compact->position, compact->loaded);
    ASSERT_TRUE(snapshot.ok()) << snapshot.status().message();
    std::set<uint32_t> attributes, schedules;
    std::map<uint32_t, uint64_t> versions;
    for (const Attribute& attribute : snapshot->attributes) {
      attributes.insert(attribute.id);
      versions[attribute.id] = attribute.version;
    }
    for (const Schedule& schedule : snapshot->schedules) schedules.insert(schedule.id);
    ASSERT_EQ(attributes, paper->attributes);
    ASSERT_EQ(versions, paper->versions);
    ASSERT_EQ(schedules, paper->runnable());
  }
}

Offer random_offer(Random& random) {
  Offer offer;
  offer.log_id = random.between(1, 2);
  offer.position = random.below(4);
  for (int i = 0; i < 4; ++i) offer.loaded.set(static_cast<uint32_t>(random.below(300)));
  offer.next_k = static_cast<uint32_t>(random.between(1, 3));
  offer.time_us = random.below(3);
  offer.lowest_rank = static_cast<int32_t>(random.below(4));
  return offer;
}

Confirmation random_vote(Random& random) {
  const uint64_t digest = random.below(3);
  const bool acceptable = random.chance(0.6);
  return {digest, digest, acceptable, acceptable ? -1 : static_cast<int32_t>(random.below(4))};
}

// Whatever the tree, the same comes out.
TEST(Meet, IsCommutativeAssociativeIdempotent) {
  Random random(4);
  for (int round = 0; round < 3000; ++round) {
    const Offer a = random_offer(random), b = random_offer(random), c = random_offer(random);
    ASSERT_EQ(meet(a, b), meet(b, a));
    ASSERT_EQ(meet(meet(a, b), c), meet(a, meet(b, c)));
    ASSERT_EQ(meet(a, a), a);
    const Confirmation x = random_vote(random), y = random_vote(random), z = random_vote(random);
    ASSERT_EQ(meet(x, y), meet(y, x));
    ASSERT_EQ(meet(meet(x, y), z), meet(x, meet(y, z)));
    ASSERT_EQ(meet(x, x), x);
  }
}

// Delivers messages in any order of ways until nothing is left; ways alone keep their order.
void shake(Random& random, AgreementWorld& world) {
  std::vector<std::pair<int, int>> ways;
  for (int from = 0; from < world.size(); ++from) {
    for (int to = 0; to < world.size(); ++to) ways.emplace_back(from, to);
  }
  for (bool moved = true; moved;) {
    moved = false;
    random.shuffle(ways);
    for (const auto& [from, to] : ways) {
      const std::optional<std::string> text = world.deliver(from, to);
      if (!text) continue;
      moved = true;
      ASSERT_EQ(text->find("REFUSED"), std::string::npos) << *text;
    }
  }
}

// Any tree, any order: one rank that gets there is enough, all decide alike, and no edge carries more than is said.
TEST(Agreement, AllDecideAlikeInAnyOrder) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Random random(seed);
    const std::vector<int> hosts = random_hosts(random, 12);
    AgreementWorld world(hosts);
    uint64_t request = 1;
    for (int n = 0; n < 6; ++n) {
      for (int rank = 0; rank < world.size(); ++rank) {
        TestHoldings& held = world[rank].holdings;
        held.next_k = static_cast<uint32_t>(random.between(1, 30));
        held.time_us = random.below(1000);
        if (random.chance(0.5)) held.read_one();
      }
      const uint64_t before = world.sent();
      const int first = static_cast<int>(random.below(hosts.size()));
      world.reach(first, request);
      for (int rank = 0; rank < world.size(); ++rank) {
        if (random.chance(0.5)) world.reach(rank, request);
      }
      shake(random, world);
      ASSERT_LE(world.sent() - before, 6 * (hosts.size() - 1));
      uint64_t next = 0;
      std::optional<Offer> decided;
      for (int rank = 0; rank < world.size(); ++rank) {
        Agreement& machine = world.machine(rank);
        ASSERT_FALSE(machine.must_wait(request));
        ASSERT_EQ(machine.take(request - 1), nullptr);
        const std::unique_ptr<Decision> decision = machine.take(request);
        ASSERT_NE(decision, nullptr);
        ASSERT_EQ(decision->agreement, static_cast<uint64_t>(n));
        ASSERT_EQ(decision->boundary, request);
        ASSERT_TRUE(machine.must_wait(decision->next_boundary));
        if (!decided) decided = decision->candidate;
        ASSERT_EQ(decision->candidate, *decided);
        ASSERT_TRUE(!decision->changed || world[rank].holdings.kept->digest == decision->digest);
        next = decision->next_boundary;
      }
      request = next;
    }
  }
}

// Ranks whose program stands still hold nobody up, and do not pile up decisions without bound.
TEST(Agreement, BoundsWhatWaits) {
  AgreementWorld world({0, 0});
  world[0].holdings.next_k = world[1].holdings.next_k = 1;
  uint64_t request = 1;
  for (; request < kMostUndone + 100; ++request) {
    world.reach(0, request);
    world.run();
    if (world.machine(0).must_wait(request)) break;
    ASSERT_NE(world.machine(0).take(request), nullptr);
  }
  EXPECT_EQ(request, kMostUndone + 1);
  EXPECT_EQ(world.machine(1).undone(), kMostUndone);
  // As it moves, so does the other.
  for (uint64_t behind = 1; behind <= 50; ++behind) {
    ASSERT_EQ(world.machine(1).next_event(), behind);
    world.reach(1, behind);
    ASSERT_NE(world.machine(1).take(behind), nullptr);
    world.run();
    while (world.machine(0).take(request) != nullptr) world.reach(0, ++request);
    world.run();
  }
  EXPECT_GE(request, kMostUndone + 49);
  EXPECT_LE(world.machine(1).undone(), kMostUndone);
}

AgreementNote random_note(Random& random, uint64_t agreement) {
  AgreementNote note;
  note.kind = static_cast<AgreementNote::Kind>(random.below(5));
  note.agreement = agreement;
  const bool has_offer = note.kind == AgreementNote::Kind::Offers || note.kind == AgreementNote::Kind::Candidate;
  if (has_offer) {
    note.offer = random_offer(random);
  } else if (note.kind != AgreementNote::Kind::Start) {
    note.vote = random_vote(random);
  }
  return note;
}

// Whatever bytes come: an error, or a note that is written as the same bytes.
TEST(AgreementWire, SurvivesAnyBytes) {
  Random random(5);
  int read_back = 0;
  for (int round = 0; round < 40000; ++round) {
    std::string bytes = encode(random_note(random, random.below(3)));
    for (uint64_t i = random.below(3); i > 0 && !bytes.empty(); --i) {
      const size_t at = random.below(bytes.size());
      switch (random.below(3)) {
        case 0: bytes[at] = static_cast<char>(random.bits()); break;
        case 1: bytes.insert(at, 1, static_cast<char>(random.bits())); break;
        default: bytes.erase(at, 1 + random.below(8));
      }
    }
    const Result<AgreementNote> note = decode_note(bytes, 4);
    if (!note.ok()) continue;
    ++read_back;
    ASSERT_EQ(encode(*note), bytes);
  }
  EXPECT_GT(read_back, 5000);
}

// A peer that says anything at any time: refused, or taken, and the machine stands.
TEST(Agreement, SurvivesAnyPeer) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    AgreementWorld world({0, 0, 1, 1, 1});
    for (int step = 0; step < 60; ++step) {
      const int from = static_cast<int>(random.below(5)), to = static_cast<int>(random.below(5));
      switch (random.below(4)) {
        case 0: world.reach(to, world.machine(to).next_event()); break;
        case 1: world.inject(from, to, encode(random_note(random, random.below(4)))); break;
        default: world.deliver(from, to);
      }
      world.machine(to).take(world.machine(to).next_event());
      ASSERT_LE(world.machine(to).undone(), kMostUndone);
    }
  }
}

}  // namespace
}  // namespace theseus
