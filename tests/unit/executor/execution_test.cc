// Each instruction, dependency and way of failing of the host executor, on plans written by hand.
#include "executor/execution.h"

#include <gtest/gtest.h>

#include <cstring>

#include "bench.h"

namespace theseus {
namespace {

using testing::after;
using testing::Bench;
using testing::kInput;
using testing::kNone;
using testing::kOutput;
using testing::kScratch;
using testing::kSlotBytes;
using testing::make;
using testing::tag_of;

// Sizes around the edges of pieces: none, one element, whole pieces, a rest.
constexpr size_t kPiece = 8 * sizeof(float);
constexpr size_t kCounts[] = {0, 1, 7, 8, 9, 64, 100};

// Copy, Nop and Reduce work inside a rank, through scratch as well.
TEST(Instructions, CopyAndReduceInsideARank) {
  for (const size_t count : kCounts) {
    Bench bench(1);
    bench.plan.rank_plans[0].scratch_chunks = 1;
    bench.block(0, {make(Opcode::Nop, kNone, kNone), make(Opcode::Copy, kInput, kScratch),
                    make(Opcode::Copy, kScratch, kOutput), make(Opcode::Reduce, kInput, kOutput)});
    bench.start(count, kPiece);
    bench.run_to_end();
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(bench.outputs[0][i], 2 * bench.inputs[0][i]) << count << " " << i;
  }
}

// Send and Recv move a chunk, piece by piece.
TEST(Instructions, SendAndRecv) {
  for (const size_t count : kCounts) {
    Bench bench(2);
    bench.block(0, {make(Opcode::Send, kInput, kNone, -1, bench.to(0, 1))});
    bench.block(1, {make(Opcode::Recv, kNone, kOutput, bench.from(1, 0))});
    bench.start(count, kPiece);
    bench.run_to_end();
    EXPECT_EQ(bench.outputs[1], bench.inputs[0]);
  }
}

// Chunks of a block are balanced, the longer ones first, and go where their index says.
TEST(Instructions, ChunksAreBalancedPiecesOfABlock) {
  for (const size_t count : {size_t{0}, size_t{2}, size_t{3}, size_t{11}, size_t{40}}) {
    Bench bench(2);
    bench.plan.chunks_per_block = 3;
    std::vector<Instruction> sends, recvs;
    const int out = bench.to(0, 1), in = bench.from(1, 0);
    for (const int chunk : {2, 0, 1}) {
      sends.push_back(make(Opcode::Send, {Buffer::Input, chunk}, kNone, -1, out));
      recvs.push_back(make(Opcode::Recv, kNone, {Buffer::Output, chunk}, in));
    }
    bench.block(0, sends);
    bench.block(1, recvs);
    bench.start(count, kPiece);
    bench.run_to_end();
    EXPECT_EQ(bench.outputs[1], bench.inputs[0]) << count;
  }
}

// The three fused forms pass on what they made of what arrived; RecvCopySend may keep nothing.
TEST(Instructions, FusedFormsPassOn) {
  struct Form {
    Opcode opcode;
    Place src, dst;
    float keeps, passes;  // times input 0 plus input 1
  };
  for (const Form& form :
       {Form{Opcode::RecvCopySend, kNone, kOutput, 0, 0}, Form{Opcode::RecvCopySend, kNone, kNone, -1, 0},
        Form{Opcode::RecvReduceSend, kInput, kNone, -1, 1}, Form{Opcode::RecvReduceCopySend, kInput, kOutput, 1, 1}}) {
    for (const size_t count : kCounts) {
      Bench bench(3);
      bench.block(0, {make(Opcode::Send, kInput, kNone, -1, bench.to(0, 1))});
      const int in = bench.from(1, 0), out = bench.to(1, 2);
      bench.block(1, {make(form.opcode, form.src, form.dst, in, out)});
      bench.block(2, {make(Opcode::Recv, kNone, kOutput, bench.from(2, 1))});
      bench.start(count, kPiece);
      bench.run_to_end();
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(bench.outputs[2][i], bench.inputs[0][i] + form.passes * bench.inputs[1][i]);
        const float kept = form.keeps < 0 ? -1 : bench.inputs[0][i] + form.keeps * bench.inputs[1][i];
        ASSERT_EQ(bench.outputs[1][i], kept);
      }
    }
  }
}

// RecvReduceCopy combines with a local operand, whichever side it stands on.
TEST(Instructions, RecvReduceCopy) {
  for (const bool recv_is_left : {false, true}) {
    for (const size_t count : kCounts) {
      Bench bench(2);
      bench.block(0, {make(Opcode::Send, kInput, kNone, -1, bench.to(0, 1))});
      Instruction reduce = make(Opcode::RecvReduceCopy, kInput, kOutput, bench.from(1, 0));
      reduce.recv_is_left = recv_is_left;
      bench.block(1, {reduce});
      bench.start(count, kPiece);
      bench.run_to_end();
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(bench.outputs[1][i], bench.inputs[0][i] + bench.inputs[1][i]);
    }
  }
}

// A Fold takes its operands in the order that the plan gives, not in the order of arrival: the rounding tells.
TEST(Instructions, FoldKeepsItsOrder) {
  constexpr float kLarge = 1 << 24;
  const float values[] = {kLarge, 1, -kLarge};  // of ranks 0, 1 and 2
  struct Order {
    std::vector<int> ranks;
    float result;
  };
  for (const Order& order : {Order{{0, 2, 1}, 1}, Order{{0, 1, 2}, 0}, Order{{2, 0, 1}, 1}, Order{{1, 0, 2}, 0}}) {
    Bench bench(3);
    Instruction fold = make(Opcode::Fold, kInput, kOutput);
    const int of_rank[] = {bench.from(1, 0), kLocalOperand, bench.from(1, 2)};
    for (const int rank : order.ranks) fold.fold.push_back(static_cast<int16_t>(of_rank[rank]));
    bench.block(0, {make(Opcode::Send, kInput, kNone, -1, bench.to(0, 1))});
    bench.block(1, {fold});
    bench.block(2, {make(Opcode::Send, kInput, kNone, -1, bench.to(2, 1))});
    bench.start(20, kPiece);
    for (int rank = 0; rank < 3; ++rank) std::fill(bench.inputs[rank].begin(), bench.inputs[rank].end(), values[rank]);
    bench.run_to_end();
    EXPECT_EQ(bench.outputs[1], std::vector<float>(20, order.result));
  }
}

// A Fold into Scratch is as long as what arrives, in every piece: the last one is shorter, and there may be an earlier
// longer one there.
TEST(Instructions, FoldsIntoScratch) {
  for (const size_t count : kCounts) {
    Bench bench(3);
    bench.plan.rank_plans[1].scratch_chunks = 1;
    Instruction fold = make(Opcode::Fold, kInput, kScratch);
    fold.fold = {static_cast<int16_t>(bench.from(1, 0)), kLocalOperand, static_cast<int16_t>(bench.from(1, 2))};
    bench.block(0, {make(Opcode::Send, kInput, kNone, -1, bench.to(0, 1))});
    bench.block(1, {fold, make(Opcode::Copy, kScratch, kOutput)});
    bench.block(2, {make(Opcode::Send, kInput, kNone, -1, bench.to(2, 1))});
    bench.start(count, kPiece);
    bench.run_to_end();
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(bench.outputs[1][i], bench.inputs[0][i] + bench.inputs[1][i] + bench.inputs[2][i]);
    }
  }
}

// Where the request scales, every first reading of Input is scaled, by each rank's own factor, and nothing else is.
TEST(Instructions, InputsAreScaledOnce) {
  Bench bench(3);
  Instruction fold = make(Opcode::Fold, kInput, kOutput);
  const int from_0 = bench.from(1, 0), from_2 = bench.from(1, 2), to_2 = bench.to(1, 2);
  fold.fold = {static_cast<int16_t>(from_0), kLocalOperand, static_cast<int16_t>(from_2)};
  bench.block(0, {make(Opcode::Send, kInput, kNone, -1, bench.to(0, 1))});
  bench.block(1, {fold, make(Opcode::Send, kOutput, kNone, -1, to_2)});
  const int out = bench.to(2, 1), in = bench.from(2, 1);
  bench.block(2, {make(Opcode::Send, kInput, kNone, -1, out)});
  bench.block(2, {make(Opcode::RecvReduceCopy, kInput, kOutput, in)});
  const float factors[] = {2, 3, 10};
  bench.start(50, kPiece);
  for (int rank = 0; rank < 3; ++rank) bench.restart(rank, 50, kPiece, &factors[rank], tag_of(50));
  bench.run_to_end();
  for (size_t i = 0; i < 50; ++i) {
    const float folded = 2 * bench.inputs[0][i] + 3 * bench.inputs[1][i] + 10 * bench.inputs[2][i];
    ASSERT_EQ(bench.outputs[1][i], folded);
    ASSERT_EQ(bench.outputs[2][i], folded + 10 * bench.inputs[2][i]);
  }
}

// A thread block waits for the step of another that it depends on, in every micro-batch.
TEST(Dependencies, WaitForTheStepNamed) {
  Bench bench(3);
  bench.block(0, {make(Opcode::Send, kInput, kNone, -1, bench.to(0, 1))});
  // The sender's block comes first, so that it runs before its data is there unless it waits.
  const int out = bench.to(1, 2), in = bench.from(1, 0);
  bench.block(1, {after(make(Opcode::Send, kOutput, kNone, -1, out), 1, 0)});
  bench.block(1, {make(Opcode::Recv, kNone, kOutput, in)});
  bench.block(2, {make(Opcode::Recv, kNone, kOutput, bench.from(2, 1))});
  bench.start(100, kPiece);
  bench.run_to_end();
  EXPECT_EQ(bench.outputs[2], bench.inputs[0]);
}

// Scratch that holds one micro-batch is not written again before the previous one was read (distance 1).
TEST(Dependencies, DistanceGuardsScratch) {
  Bench bench(2, {}, kMaxSlots);
  bench.plan.rank_plans[1].scratch_chunks = 1;
  bench.block(0, {make(Opcode::Send, kInput, kNone, -1, bench.to(0, 1))});
  const int in = bench.from(1, 0);
  bench.block(1, {after(make(Opcode::Recv, kNone, kScratch, in), 1, 0, 1)});
  bench.block(1, {after(make(Opcode::Copy, kScratch, kOutput), 0, 0)});
  bench.start(100, kPiece);
  bench.run_to_end();
  EXPECT_EQ(bench.outputs[1], bench.inputs[0]);
}

// The last piece of a chunk is shorter, and stays so on its way through scratch and a fused send.
TEST(Dependencies, ScratchKeepsTheLengthOfShortPieces) {
  Bench bench(3);
  bench.plan.rank_plans[1].scratch_chunks = 1;
  bench.block(0, {make(Opcode::Send, kInput, kNone, -1, bench.to(0, 1))});
  const int in = bench.from(1, 0), out = bench.to(1, 2);
  bench.block(1, {make(Opcode::RecvCopySend, kNone, kScratch, in, out), make(Opcode::Copy, kScratch, kOutput)});
  bench.block(2, {make(Opcode::Recv, kNone, kOutput, bench.from(2, 1))});
  bench.start(13, kPiece);
  bench.run_to_end();
  EXPECT_EQ(bench.outputs[1], bench.inputs[0]);
  EXPECT_EQ(bench.outputs[2], bench.inputs[0]);
}

constexpr size_t kLargeCount = 5000;  // elements; larger than the smallest reference

// A request that passed its buffer by reference is over only when the receiver has released it.
TEST(References, EndWithTheirReceiver) {
  Bench bench(2, {.same_process = true});
  bench.plan.rendezvous_safe = true;
  bench.block(0, {make(Opcode::Send, kInput, kNone, -1, bench.to(0, 1))});
  bench.block(1, {make(Opcode::Recv, kNone, kOutput, bench.from(1, 0))});
  bench.start(kLargeCount);
  EXPECT_EQ(bench.executions[0]->advance(), Advance::Progressed);
  EXPECT_EQ(bench.executions[0]->advance(), Advance::Blocked);
  // No copy was taken: what the buffer holds when the receiver looks is what it gets.
  bench.inputs[0][1] = 5;
  EXPECT_EQ(bench.executions[1]->advance(), Advance::Done);
  EXPECT_NE(bench.executions[0]->advance(), Advance::Blocked);
  EXPECT_EQ(bench.executions[0]->advance(), Advance::Done);
  EXPECT_EQ(bench.outputs[1], bench.inputs[0]);
}

// Where a plan is not safe by reference, or the request scales, buffers are copied.
TEST(References, OnlyWhereThePlanAllowsThem) {
  const float one = 1;
  for (const bool safe : {false, true}) {
    Bench bench(2, {.same_process = true});
    bench.plan.rendezvous_safe = safe;
    bench.block(0, {make(Opcode::Send, kInput, kNone, -1, bench.to(0, 1))});
    bench.block(1, {make(Opcode::Recv, kNone, kOutput, bench.from(1, 0))});
    bench.start(kLargeCount, kSlotBytes, safe ? &one : nullptr);
    EXPECT_EQ(bench.executions[0]->advance(), Advance::Done) << "nothing to wait for";
    EXPECT_EQ(bench.executions[1]->advance(), Advance::Done);
    EXPECT_EQ(bench.outputs[1], bench.inputs[0]);
  }
}

// A step that overwrites what is passed by reference waits until the receiver has it, not just until it was posted.
TEST(References, AreNotOverwrittenWhileOut) {
  Bench bench(2, {.same_process = true});
  bench.plan.rendezvous_safe = true;
  // Both ranks send their Output and then receive into it: an exchange in place.
  for (const int rank : {0, 1}) {
    const int out = bench.to(rank, 1 - rank), in = bench.from(rank, 1 - rank);
    bench.block(rank, {make(Opcode::Copy, kInput, kOutput)});
    bench.block(rank, {after(make(Opcode::Send, kOutput, kNone, -1, out), 0, 0)});
    bench.block(rank, {after(make(Opcode::Recv, kNone, kScratch, in), 0, 0),
                       after(make(Opcode::Copy, kScratch, kOutput), 1, 0)});
    bench.plan.rank_plans[rank].scratch_chunks = 1;
  }
  bench.start(kLargeCount);
  bench.run_to_end();
  EXPECT_EQ(bench.outputs[0], bench.inputs[1]);
  EXPECT_EQ(bench.outputs[1], bench.inputs[0]);
}

// An execution runs request after request, of any size: what it remembers of one does not leak into the next.
TEST(Execution, RunsRequestAfterRequest) {
  Bench bench(2);
  bench.plan.chunks_per_block = 2;
  const int out = bench.to(0, 1), in = bench.from(1, 0);
  bench.block(0, {make(Opcode::Send, kInput, kNone, -1, out), make(Opcode::Send, {Buffer::Input, 1}, kNone, -1, out)});
  bench.block(1, {make(Opcode::Recv, kNone, kOutput, in), make(Opcode::Recv, kNone, {Buffer::Output, 1}, in)});
  for (const size_t count : {100, 100, 3, 0, 77, 4000, 3, 3}) {
    bench.start(count, count == 77 ? kSlotBytes : kPiece);
    bench.run_to_end();
    EXPECT_EQ(bench.outputs[1], bench.inputs[0]) << count;
  }
}

// A peer that runs another call is found out, and both calls are named.
TEST(Mismatch, NamesBothCalls) {
  for (const Opcode opcode : {Opcode::Recv, Opcode::RecvReduceCopy, Opcode::Fold}) {
    Bench bench(2);
    bench.block(0, {make(Opcode::Send, kInput, kNone, -1, bench.to(0, 1))});
    const int in = bench.from(1, 0);
    Instruction receive = make(opcode, kInput, kOutput, opcode == Opcode::Fold ? -1 : in);
    if (opcode == Opcode::Fold) receive.fold = {static_cast<int16_t>(in), kLocalOperand};
    bench.block(1, {receive});
    bench.start(20);
    bench.restart(0, 10, kSlotBytes, nullptr, tag_of(10, 7));
    const std::vector<Advance> states = bench.run();
    EXPECT_EQ(states[1], Advance::Failed);
    const Status& status = bench.executions[1]->status();
    EXPECT_EQ(status.code(), Code::InvalidUsage);
    EXPECT_NE(status.message().find(describe(tag_of(20).signature)), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(describe(tag_of(10, 7).signature)), std::string::npos) << status.message();
  }
}

// The fused forms look before they pass anything on.
TEST(Mismatch, IsNotPassedOn) {
  for (const Opcode opcode : {Opcode::RecvCopySend, Opcode::RecvReduceSend, Opcode::RecvReduceCopySend}) {
    Bench bench(3);
    bench.block(0, {make(Opcode::Send, kInput, kNone, -1, bench.to(0, 1))});
    const int in = bench.from(1, 0), out = bench.to(1, 2);
    bench.block(1, {make(opcode, kInput, kOutput, in, out)});
    bench.block(2, {make(Opcode::Recv, kNone, kOutput, bench.from(2, 1))});
    bench.start(20);
    bench.restart(0, 20, kSlotBytes, nullptr, tag_of(20, 2));
    const std::vector<Advance> states = bench.run();
    EXPECT_EQ(states[1], Advance::Failed);
    EXPECT_EQ(states[2], Advance::Blocked) << "nothing has reached the next rank";
  }
}

// A message of the right request but the wrong length never runs over a buffer.
TEST(Mismatch, CatchesWrongLengths) {
  Bench bench(2);
  bench.block(0, {make(Opcode::Send, kInput, kNone, -1, bench.to(0, 1))});
  bench.block(1, {make(Opcode::Recv, kNone, kOutput, bench.from(1, 0))});
  bench.start(20);
  bench.restart(1, 10, kSlotBytes, nullptr, tag_of(20));
  EXPECT_EQ(bench.run()[1], Advance::Failed);
  EXPECT_EQ(bench.outputs[1], std::vector<float>(20, -1));
}

// A program needs its rank's part of the plan, and the ports it names.
TEST(Program, NamesWhatIsMissing) {
  Bench bench(2);
  Result<std::unique_ptr<Program>> missing = Program::build(bench.plan, 2, bench.world[0]);
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.status().message().find("rank 2"), std::string::npos) << missing.status().message();

  class NoPorts final : public PortSource {
    Result<SendPort*> send_port(int, int, int) override { return Status::system("no way out"); }
    Result<RecvPort*> recv_port(int, int, int) override { return Status::system("no way in"); }
  } none;
  bench.to(0, 1);
  bench.from(1, 0);
  Result<std::unique_ptr<Program>> out = Program::build(bench.plan, 0, none);
  Result<std::unique_ptr<Program>> in = Program::build(bench.plan, 1, none);
  ASSERT_FALSE(out.ok());
  ASSERT_FALSE(in.ok());
  EXPECT_EQ(out.status().message(), "no way out");
  EXPECT_EQ(in.status().message(), "no way in");
}

}  // namespace
}  // namespace theseus
