// Places of chunks, and a plan file that survives any bytes.
#include <gtest/gtest.h>

#include <random>

#include "schedule/bytes.h"
#include "schedule/check.h"
#include "schedule/places.h"
#include "schedule/plan.h"
#include "schedule/topology.h"

namespace theseus {
namespace {

constexpr Collective kWithPlans[] = {Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter,
                                     Collective::Broadcast, Collective::Reduce,    Collective::AllToAll,
                                     Collective::Gather,    Collective::Scatter};

// Two ranks, every opcode, every kind of operand.
Plan sample() {
  Plan plan;
  plan.name = "sample(2)";
  plan.collective = Collective::AllReduce;
  plan.ranks = 2;
  plan.chunks_per_block = 3;
  plan.rendezvous_safe = true;
  plan.loop = LoopOrder::SubPipelines;
  const Place in{Buffer::Input, 1}, out{Buffer::Output, 2}, scratch{Buffer::Scratch, 0};
  for (int rank = 0; rank < 2; ++rank) {
    RankPlan part;
    part.rank = rank;
    part.scratch_chunks = 1;
    part.connections = {{1 - rank, true, 1, 0}, {1 - rank, false, 1, 0}, {1 - rank, false, 0, 2}};
    part.thread_blocks = {{{{Opcode::Nop, false, -1, -1, {}, {}, 0, {}, {{1, 0, 2}}},
                            {Opcode::Send, false, -1, 0, in, {}, 0, {}, {}},
                            {Opcode::Recv, false, 1, -1, {}, scratch, 1, {}, {{1, 1, 0}, {1, 0, 1}}},
                            {Opcode::RecvCopySend, false, 1, 0, {}, out, 1, {}, {}},
                            {Opcode::RecvReduceCopy, true, 1, -1, in, out, 2, {}, {}},
                            {Opcode::RecvReduceSend, true, 1, 0, in, {}, 2, {}, {}},
                            {Opcode::RecvReduceCopySend, false, 1, 0, in, out, 700, {}, {}}}},
                          {{{Opcode::Copy, false, -1, -1, in, out, 0, {}, {}},
                            {Opcode::Reduce, false, -1, -1, scratch, out, 1, {}, {}},
                            {Opcode::Fold, false, -1, -1, in, out, 2, {2, kLocalOperand}, {}}}}};
    plan.rank_plans.push_back(part);
  }
  return plan;
}

TEST(Places, TwinsAreTheTwoNamesOfOneChunk) {
  for (const Collective collective : kWithPlans) {
    for (const int ranks : {1, 3, 4}) {
      const int root = ranks - 1;
      for (int rank = 0; rank < ranks; ++rank) {
        const int k = 2;
        const BufferShape shape = buffer_shape(collective, ranks, root, rank);
        const ChunkSpace space{collective, ranks, root, k};
        for (const Buffer buffer : {Buffer::Input, Buffer::Output}) {
          const int blocks = buffer == Buffer::Input ? shape.input_blocks : shape.output_blocks;
          for (int index = 0; index < blocks * k; ++index) {
            const Place place{buffer, index};
            const int chunk = space.chunk_at(rank, place);
            const Place same = buffer == Buffer::Input ? space.input(rank, chunk) : space.output(rank, chunk);
            EXPECT_EQ(same.buffer, buffer);
            EXPECT_EQ(same.index, index);
            const Place twin = in_place_twin(collective, ranks, root, rank, k, place);
            if (twin.buffer == Buffer::None) continue;
            EXPECT_NE(twin.buffer, buffer);
            EXPECT_EQ(space.chunk_at(rank, twin), chunk);
            EXPECT_EQ(in_place_twin(collective, ranks, root, rank, k, twin).index, index);
          }
        }
      }
    }
  }
}

TEST(Places, FollowTheTableOfThePlanHeader) {
  const auto twin = [](Collective c, int rank, Place p) { return in_place_twin(c, 4, 1, rank, 2, p); };
  EXPECT_EQ(twin(Collective::AllGather, 2, {Buffer::Input, 1}).index, 5);
  EXPECT_EQ(twin(Collective::AllGather, 2, {Buffer::Output, 5}).index, 1);
  EXPECT_EQ(twin(Collective::AllGather, 2, {Buffer::Output, 6}).buffer, Buffer::None);
  EXPECT_EQ(twin(Collective::ReduceScatter, 3, {Buffer::Output, 0}).index, 6);
  EXPECT_EQ(twin(Collective::AllReduce, 3, {Buffer::Output, 1}).index, 1);
  EXPECT_EQ(twin(Collective::AllToAll, 0, {Buffer::Input, 0}).buffer, Buffer::None);
  EXPECT_EQ(twin(Collective::Broadcast, 1, {Buffer::Output, 1}).buffer, Buffer::Input);
  EXPECT_EQ(twin(Collective::Broadcast, 0, {Buffer::Output, 1}).buffer, Buffer::None);
  EXPECT_EQ(buffer_shape(Collective::Broadcast, 4, 1, 0).input_blocks, 0);
  EXPECT_EQ(buffer_shape(Collective::Reduce, 4, 1, 0).output_blocks, 0);
  EXPECT_EQ(buffer_shape(Collective::Gather, 4, 1, 1).output_blocks, 4);
  EXPECT_EQ(buffer_shape(Collective::AllToAll, 4, 1, 1).input_blocks, 4);
}

TEST(PlanFile, KeepsEveryField) {
  const Plan plan = sample();
  const std::string bytes = serialize(plan);
  const auto parsed = parse_plan(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->name, "sample(2)");
  EXPECT_EQ(parsed->chunks_per_block, 3);
  EXPECT_TRUE(parsed->rendezvous_safe);
  EXPECT_EQ(parsed->loop, LoopOrder::SubPipelines);
  EXPECT_EQ(parsed->rank_plans[0].thread_blocks[0].instructions[6].sub_pipeline, 700);
  const Instruction& fold = parsed->rank_plans[1].thread_blocks[1].instructions[2];
  EXPECT_EQ(fold.fold, (std::vector<int16_t>{2, kLocalOperand}));
  EXPECT_EQ(parsed->rank_plans[0].thread_blocks[0].instructions[2].dependencies[0].distance, 1);
  EXPECT_EQ(parsed->rank_plans[0].connections[2].channel, 2);
  EXPECT_EQ(serialize(*parsed), bytes);
  EXPECT_EQ(digest(*parsed), digest(plan));
}

TEST(PlanFile, IsTheSameOnEveryMachine) {
  // Changes of format or digest make peers of different builds refuse each other: they must be deliberate.
  EXPECT_EQ(serialize(sample()).substr(0, 12), std::string("THSPLAN\0\2\0\0\0", 12));
  EXPECT_EQ(digest(sample()), 0xaf62eb15584a60afull);
}

TEST(PlanFile, DigestSeesEveryField) {
  const uint64_t base = digest(sample());
  const auto expect_other = [&](auto change) {
    Plan plan = sample();
    change(plan);
    EXPECT_NE(digest(plan), base);
  };
  expect_other([](Plan& p) { p.name = "sample(3)"; });
  expect_other([](Plan& p) { p.root = 1; });
  expect_other([](Plan& p) { p.rendezvous_safe = false; });
  expect_other([](Plan& p) { p.loop = LoopOrder::MicroBatches; });
  expect_other([](Plan& p) { p.rank_plans[1].thread_blocks[0].instructions[6].sub_pipeline = 701; });
  expect_other([](Plan& p) { p.rank_plans.pop_back(); });
  expect_other([](Plan& p) { p.rank_plans[1].scratch_chunks = 2; });
  expect_other([](Plan& p) { p.rank_plans[1].connections[0].rail = 0; });
  expect_other([](Plan& p) { p.rank_plans[1].thread_blocks[0].instructions[4].recv_is_left = false; });
  expect_other([](Plan& p) { p.rank_plans[1].thread_blocks[1].instructions[2].fold = {kLocalOperand, 2}; });
  expect_other([](Plan& p) { p.rank_plans[0].thread_blocks[0].instructions[2].dependencies[0].distance = 0; });
  expect_other([](Plan& p) { p.rank_plans[0].thread_blocks[0].instructions[1].src.index = 0; });
}

TEST(PlanFile, ARankReadsOnlyItsOwnPart) {
  std::string bytes = serialize(sample());
  bytes.back() = static_cast<char>(bytes.back() + 1);  // in the last rank's section
  const auto mine = parse_plan_of_rank(bytes, 0);
  ASSERT_TRUE(mine.ok()) << mine.status().message();
  ASSERT_EQ(mine->rank_plans.size(), 1u);
  EXPECT_EQ(mine->rank_plans[0].rank, 0);
  const auto other = parse_plan_of_rank(bytes, 1);
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find("checksum of the section of rank 1"), std::string::npos);
  EXPECT_FALSE(parse_plan(bytes).ok());
  EXPECT_NE(parse_plan_of_rank(serialize(sample()), 2).status().message().find("no part for rank 2"),
            std::string::npos);
}

TEST(PlanFile, RefusesEveryChangedByteAndEveryCut) {
  const std::string good = serialize(sample());
  for (size_t at = 0; at < good.size(); ++at) {
    std::string changed = good;
    changed[at] = static_cast<char>(changed[at] ^ 0x11);
    EXPECT_FALSE(parse_plan(changed).ok()) << at;
    EXPECT_FALSE(parse_plan(good.substr(0, at)).ok()) << at;
  }
  EXPECT_FALSE(parse_plan(good + "x").ok());
}

// Makes the checksums right again, so that what lies behind them is reached.
std::string with_checksums(std::string bytes) {
  const auto put = [&](size_t at, uint64_t value) {
    for (size_t i = 0; i < 8; ++i) bytes[at + i] = static_cast<char>(value >> (8 * i) & 0xff);
  };
  const auto get = [&](size_t at, size_t size) {
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i) value |= uint64_t{static_cast<uint8_t>(bytes[at + i])} << (8 * i);
    return value;
  };
  if (bytes.size() < 24) return bytes;
  const size_t head = std::min<size_t>(get(12, 4), bytes.size());
  const size_t rows = 2;
  if (head < 24 + rows * 28) return bytes;
  for (size_t row = 0; row < rows; ++row) {
    const size_t at = head - (rows - row) * 28;
    const uint64_t offset = get(at + 4, 8), size = get(at + 12, 8);
    if (offset > bytes.size() || size > bytes.size() - offset) continue;
    put(at + 20, hash_bytes(bytes.data() + offset, size));
  }
  put(16, hash_bytes(bytes.data() + 24, head - 24));
  return bytes;
}

TEST(PlanFile, SurvivesDamageBehindGoodChecksums) {
  const std::string good = serialize(sample());
  ASSERT_EQ(with_checksums(good), good);
  std::mt19937_64 random(7);
  int refused = 0, parsed = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    for (uint64_t changes = random() % 3 + 1; changes > 0; --changes) {
      static constexpr uint8_t kNasty[] = {0, 1, 0x7f, 0x80, 0xff};
      const uint8_t value = random() % 2 == 0 ? kNasty[random() % 5] : static_cast<uint8_t>(random());
      bytes[random() % bytes.size()] = static_cast<char>(value);
    }
    const auto plan = parse_plan(with_checksums(bytes));
    if (!plan.ok()) {
      ++refused;
      EXPECT_FALSE(plan.status().message().empty());
      continue;
    }
    ++parsed;
    // Whatever is accepted has every index in range, and is written again as it was read.
    for (const RankPlan& part : plan->rank_plans) EXPECT_TRUE(check_part(*plan, part).ok());
    EXPECT_TRUE(parse_plan(serialize(*plan)).ok());
  }
  EXPECT_GT(refused, 5000);
  EXPECT_GT(parsed, 500);
}

TEST(PlanFile, SurvivesNoise) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = serialize(sample()).substr(0, random() % 30);
    for (uint64_t n = random() % 200; n > 0; --n) bytes += static_cast<char>(random());
    EXPECT_FALSE(parse_plan(bytes).ok());
    EXPECT_FALSE(parse_plan_of_rank(bytes, 0).ok());
  }
}

TEST(Check, NamesRankBlockAndStep) {
  const auto expect = [](auto change, const std::string& words) {
    Plan plan = sample();
    RankPlan& part = plan.rank_plans[1];
    change(part);
    const Status status = check_part(plan, part);
    ASSERT_FALSE(status.ok()) << words;
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  };
  const auto instruction = [](RankPlan& p, size_t tb, size_t step) -> Instruction& {
    return p.thread_blocks[tb].instructions[step];
  };
  expect([&](RankPlan& p) { instruction(p, 0, 1).send = 7; }, "rank 1, TB 0, step 1 (Send, chunk Input[1])");
  expect([&](RankPlan& p) { instruction(p, 0, 1).send = 1; }, "goes the other way");
  expect([&](RankPlan& p) { instruction(p, 0, 4).dst.index = 3; }, "destination outside of its buffer, which has 3");
  expect([&](RankPlan& p) { instruction(p, 0, 4).dst.buffer = Buffer::Input; }, "not the plan's to write");
  expect([&](RankPlan& p) { instruction(p, 0, 2).dependencies[0].step = 3; }, "waits for TB 1, step 3");
  expect([&](RankPlan& p) { instruction(p, 0, 2).dependencies[0].distance = 2; }, "distance 2");
  expect([&](RankPlan& p) { instruction(p, 1, 2).fold.clear(); }, "folds nothing");
  expect([&](RankPlan& p) { instruction(p, 1, 2).fold = {2}; }, "exactly once");
  expect([&](RankPlan& p) { instruction(p, 1, 0).opcode = static_cast<Opcode>(kOpcodes); }, "no such opcode");
  expect([&](RankPlan& p) { instruction(p, 0, 3).sub_pipeline = 0; },
         "step 3 (RecvCopySend, chunk Output[2]): goes back");
  expect([&](RankPlan& p) { instruction(p, 0, 0).sub_pipeline = -1; }, "goes back to sub-pipeline -1");
  expect([&](RankPlan& p) { p.scratch_chunks = 11; }, "11 scratch chunks for 10 instructions");
  expect([&](RankPlan& p) { p.connections[0].peer = 1; }, "a connection with peer 1");
}

TEST(Topology, GroupsAndSummarises) {
  const Topology topology{{5, 3, 5, 3, 9}, 2};
  EXPECT_EQ(ranks_by_host(topology), (std::vector<std::vector<int>>{{0, 2}, {1, 3}, {4}}));
  EXPECT_EQ(summary_of(topology).hosts, 3);
  EXPECT_EQ(summary_of(topology).ranks_per_host, 0);
  EXPECT_EQ(summary_of(uniform_hosts(4, 2, 3)).ranks_per_host, 2);
  EXPECT_EQ(summary_of(single_host(4)).hosts, 1);
}

}  // namespace
}  // namespace theseus
