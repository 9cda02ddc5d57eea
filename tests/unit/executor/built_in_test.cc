// Every built-in algorithm, lowered and run over shared memory, against the reference.
#include <gtest/gtest.h>

#include "request.h"

namespace theseus {
namespace {

using testing::CollectiveCase;
using testing::for_each_plan;
using testing::geometry_of;
using testing::Request;
using testing::ShmWorld;

constexpr size_t kSlotBytes = 32 << 10;

bool has_in_place_form(Collective collective) { return collective != Collective::AllToAll; }

class BuiltInExecution : public ::testing::TestWithParam<int> {};

// Whatever the algorithm, the order in which ranks run, the slots, the size of pieces and the place of buffers, every
// rank ends with what the collective promises, and nobody waits for ever.
TEST_P(BuiltInExecution, GivesTheReferencesResult) {
  const int ranks = GetParam();
  for (const int slots : {2, kMaxSlots}) {
    ShmWorld world(geometry_of(ranks, slots, kSlotBytes));
    for (const size_t count : {1, 7, 300}) {
      for_each_plan(ranks, count, [&](CollectiveCase test, const Plan& plan) {
        for (const bool in_place : {false, true}) {
          if (in_place && !has_in_place_form(test.collective)) continue;
          test.in_place = in_place;
          EXPECT_EQ(Request<int32_t>(test, plan, world, 64).run_in_turn(count + ranks), "");
          EXPECT_EQ(Request<double>(test, plan, world, kSlotBytes).run_in_turn(count), "");
        }
      });
    }
  }
}

// The same where large pieces are passed by reference to the user's buffers, or share one copy in a slot.
TEST_P(BuiltInExecution, GivesTheReferencesResultForLargePieces) {
  const int ranks = GetParam();
  for (const bool references : {false, true}) {
    for (const int slots : {2, kMaxSlots}) {
      ShmWorld world(geometry_of(ranks, slots, kSlotBytes), {.same_process = references});
      for_each_plan(ranks, 4001, [&](CollectiveCase test, const Plan& plan) {
        for (const bool in_place : {false, true}) {
          if (in_place && !has_in_place_form(test.collective)) continue;
          test.in_place = in_place;
          test.op = RedOp::Max;
          EXPECT_EQ(Request<int32_t>(test, plan, world, references ? 4400 : 2200).run_in_turn(slots), "");
        }
      });
    }
  }
}

// The same with a thread for each rank, request after request over the same connections.
TEST_P(BuiltInExecution, GivesTheReferencesResultInThreads) {
  const int ranks = GetParam();
  ShmWorld copying(geometry_of(ranks, 3, kSlotBytes));
  ShmWorld referring(geometry_of(ranks, 3, kSlotBytes), {.same_process = true});
  for_each_plan(ranks, 3000, [&](CollectiveCase test, const Plan& plan) {
    EXPECT_EQ(Request<float>(test, plan, copying, 1000).run_in_threads(copying), "");
    test.in_place = has_in_place_form(test.collective);
    EXPECT_EQ(Request<float>(test, plan, referring, 4500).run_in_threads(referring), "");
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, BuiltInExecution, ::testing::Values(1, 2, 3, 5, 8));

}  // namespace
}  // namespace theseus
