// LoopOrder::SubPipelines on the host: which instruction runs when, what dependencies mean, what scratch holds.
#include <gtest/gtest.h>

#include "bench.h"
#include "compiler/compile.h"
#include "compiler/lower.h"
#include "compiler/registry.h"
#include "request.h"

namespace theseus {
namespace {

using testing::after;
using testing::Bench;
using testing::CollectiveCase;
using testing::geometry_of;
using testing::kNone;
using testing::make;
using testing::Request;
using testing::ShmWorld;

constexpr size_t kPiece = 8 * sizeof(float);

Instruction in_sub_pipeline(int number, Instruction instruction) {
  instruction.sub_pipeline = number;
  return instruction;
}

// A TB repeats its first sub-pipeline for all micro-batches before the next; the other order takes them in turn.
TEST(LoopOrders, SayWhatIsRepeated) {
  for (const LoopOrder loop : {LoopOrder::MicroBatches, LoopOrder::SubPipelines}) {
    Bench bench(2, {}, kMaxSlots);
    bench.plan.loop = loop;
    bench.plan.chunks_per_block = 3;
    const int out = bench.to(0, 1);
    bench.from(1, 0);
    bench.block(0, {in_sub_pipeline(0, make(Opcode::Send, {Buffer::Input, 0}, kNone, -1, out)),
                    in_sub_pipeline(0, make(Opcode::Send, {Buffer::Input, 1}, kNone, -1, out)),
                    in_sub_pipeline(4, make(Opcode::Send, {Buffer::Input, 2}, kNone, -1, out))});
    bench.start(48, kPiece);  // two micro-batches of each chunk
    bench.executions[0]->advance();
    const std::vector<int> first_elements = loop == LoopOrder::MicroBatches ? std::vector<int>{0, 16, 32, 8, 24, 40}
                                                                            : std::vector<int>{0, 16, 8, 24, 32, 40};
    RecvPort& port = **bench.world[1].recv_port(0, 0, 0);
    for (const int first : first_elements) {
      const Message* message = port.peek();
      ASSERT_NE(message, nullptr);
      EXPECT_EQ(*static_cast<const float*>(message->data), bench.inputs[0][static_cast<size_t>(first)]);
      port.release();
    }
    EXPECT_EQ(port.peek(), nullptr);
  }
}

// A dependency on a later loop of another TB waits for that instruction of the same micro-batch, and for no more.
TEST(LoopOrders, DependenciesCountAcrossLoops) {
  for (const LoopOrder loop : {LoopOrder::MicroBatches, LoopOrder::SubPipelines}) {
    for (const size_t count : {size_t{1}, size_t{40}, size_t{100}}) {
      Bench bench(3);
      bench.plan.loop = loop;
      bench.plan.chunks_per_block = 2;
      const int source = bench.to(0, 1);
      const int out = bench.to(1, 2), in = bench.from(1, 0);
      const int end = bench.from(2, 1);
      std::vector<Instruction> sends, receives, passes, takes;
      for (const int chunk : {0, 1}) {
        sends.push_back(in_sub_pipeline(chunk, make(Opcode::Send, {Buffer::Input, chunk}, kNone, -1, source)));
        receives.push_back(in_sub_pipeline(chunk, make(Opcode::Recv, kNone, {Buffer::Output, chunk}, in)));
        passes.push_back(
            in_sub_pipeline(chunk, after(make(Opcode::Send, {Buffer::Output, chunk}, kNone, -1, out), 1, chunk)));
        takes.push_back(in_sub_pipeline(chunk, make(Opcode::Recv, kNone, {Buffer::Output, chunk}, end)));
      }
      bench.block(0, sends);
      bench.block(1, passes);  // runs first, so that it passes on what is not there yet unless it waits
      bench.block(1, receives);
      bench.block(2, takes);
      bench.start(count, kPiece);
      bench.run_to_end();
      EXPECT_EQ(bench.outputs[2], bench.inputs[0]) << count;
    }
  }
}

// Distance 1 is the same instruction one micro-batch earlier, in whichever loop: two TBs that go by turns come to an
// end, and the one that must be behind is.
TEST(LoopOrders, DistanceCountsMicroBatchesOfTheLoop) {
  Bench bench(2, {}, kMaxSlots);
  bench.plan.loop = LoopOrder::SubPipelines;
  bench.plan.chunks_per_block = 2;
  const int source = bench.to(0, 1), in = bench.from(1, 0);
  bench.plan.rank_plans[1].scratch_chunks = 1;
  std::vector<Instruction> sends, receives, copies;
  for (const int chunk : {0, 1}) {
    sends.push_back(in_sub_pipeline(chunk, make(Opcode::Send, {Buffer::Input, chunk}, kNone, -1, source)));
    // Both chunks go through one place, so its second loop waits for the end of the first loop's readers.
    Instruction receive = after(make(Opcode::Recv, kNone, {Buffer::Scratch, 0}, in), 1, chunk, 1);
    if (chunk == 1) receive = after(receive, 1, 0);
    receives.push_back(in_sub_pipeline(chunk, receive));
    copies.push_back(
        in_sub_pipeline(chunk, after(make(Opcode::Copy, {Buffer::Scratch, 0}, {Buffer::Output, chunk}), 0, chunk)));
  }
  bench.block(0, sends);
  bench.block(1, receives);
  bench.block(1, copies);
  bench.start(100, kPiece);
  bench.run_to_end();
  EXPECT_EQ(bench.outputs[1], bench.inputs[0]);
}

// Scratch keeps every micro-batch of a chunk until a later sub-pipeline takes them, short last ones too.
TEST(LoopOrders, ScratchHoldsWholeChunks) {
  for (const size_t count : {0, 1, 7, 8, 9, 13, 100}) {
    Bench bench(3);
    bench.plan.loop = LoopOrder::SubPipelines;
    bench.plan.rank_plans[1].scratch_chunks = 2;
    const int in = bench.from(1, 0), back = bench.from(1, 2), out = bench.to(1, 2);
    bench.block(0, {make(Opcode::Send, {Buffer::Input, 0}, kNone, -1, bench.to(0, 1))});
    bench.block(1, {in_sub_pipeline(0, make(Opcode::Recv, kNone, {Buffer::Scratch, 1}, in)),
                    in_sub_pipeline(1, make(Opcode::RecvReduceCopy, {Buffer::Scratch, 1}, {Buffer::Scratch, 0}, back)),
                    in_sub_pipeline(2, make(Opcode::Reduce, {Buffer::Input, 0}, {Buffer::Scratch, 0})),
                    in_sub_pipeline(3, make(Opcode::Send, {Buffer::Scratch, 0}, kNone, -1, out))});
    const int give = bench.to(2, 1), take = bench.from(2, 1);
    bench.block(2, {make(Opcode::Send, {Buffer::Input, 0}, kNone, -1, give)});
    bench.block(2, {make(Opcode::Recv, kNone, {Buffer::Output, 0}, take)});
    bench.start(count, kPiece);
    bench.run_to_end();
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(bench.outputs[2][i], bench.inputs[0][i] + bench.inputs[1][i] + bench.inputs[2][i]) << count;
    }
  }
}

// `plan` with a loop for every instruction. Valid where none is fused: all events go up in the order (step, chunk,
// micro-batch). Scratch holds all micro-batches, so none waits for the one before.
Plan one_loop_each(Plan plan) {
  plan.loop = LoopOrder::SubPipelines;
  for (RankPlan& part : plan.rank_plans) {
    for (ThreadBlock& block : part.thread_blocks) {
      int32_t number = 0;
      for (Instruction& instruction : block.instructions) {
        instruction.sub_pipeline = number++;
        std::erase_if(instruction.dependencies, [](const Dependency& d) { return d.distance > 0; });
      }
    }
  }
  return plan;
}

bool is_fused(const Plan& plan) {
  for (const RankPlan& part : plan.rank_plans) {
    for (const ThreadBlock& block : part.thread_blocks) {
      for (const Instruction& i : block.instructions) {
        if (i.recv >= 0 && i.send >= 0) return true;
      }
    }
  }
  return false;
}

// Every built-in algorithm gives the reference's result in this order too, by slots, shared slots and references.
TEST(LoopOrders, BuiltInAlgorithmsRunByLoops) {
  size_t plans = 0;
  for (const int ranks : {2, 3, 5}) {
    for (const bool references : {false, true}) {
      ShmWorld copying(geometry_of(ranks, 2, 32 << 10), {.same_process = references});
      ShmWorld roomy(geometry_of(ranks, kMaxSlots, 32 << 10), {.same_process = references});
      testing::for_each_plan(ranks, 4001, [&](CollectiveCase test, const Plan& plan) {
        if (is_fused(plan)) return;
        ++plans;
        const Plan by_loops = one_loop_each(plan);
        for (const bool in_place : {false, true}) {
          if (in_place && test.collective == Collective::AllToAll) continue;
          test.in_place = in_place;
          EXPECT_EQ(Request<int32_t>(test, by_loops, copying, 500).run_in_turn(ranks), "");
          EXPECT_EQ(Request<double>(test, by_loops, roomy, references ? 4400 : 2200).run_in_turn(ranks), "");
        }
      });
    }
  }
  EXPECT_GT(plans, 50u);
}

// What the compiler makes with sub-pipelines gives the reference's result in both orders, whichever rank runs when,
// with few slots and many, with slots that several receivers share, and by reference.
TEST(LoopOrders, CompiledPlansRunInBothOrders) {
  for (const int ranks : {2, 3, 6}) {
    const Topology topology = ranks == 6 ? uniform_hosts(2, 3, 1) : single_host(ranks);
    ShmWorld few(geometry_of(ranks, 2, 32 << 10));
    ShmWorld many(geometry_of(ranks, kMaxSlots, 32 << 10), {.same_process = true});
    for (const LoopOrder loop : {LoopOrder::MicroBatches, LoopOrder::SubPipelines}) {
      testing::for_each_plan(ranks, 4001, [&](CollectiveCase test, const Plan& lowered) {
        CompileOptions options;
        options.loop = loop;
        Result<Algorithm> algorithm =
            build(lowered.name.substr(0, lowered.name.find('(')), test.collective, topology, test.root);
        if (!algorithm.ok()) return;
        Result<Plan> plan = compile(*algorithm, topology, options);
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        for (const bool in_place : {false, true}) {
          if (in_place && test.collective == Collective::AllToAll) continue;
          test.in_place = in_place;
          EXPECT_EQ(Request<int32_t>(test, *plan, few, 500).run_in_turn(ranks), "");
          EXPECT_EQ(Request<int32_t>(test, *plan, few, 2200).run_in_turn(ranks + 1), "");
          EXPECT_EQ(Request<double>(test, *plan, many, 4400).run_in_turn(ranks), "");
        }
      });
    }
  }
}

}  // namespace
}  // namespace theseus
