// What every plan must satisfy before anything follows its indices. What it computes is the verifier's business.
#pragma once

#include "base/result.h"
#include "schedule/plan.h"

namespace theseus {

// Ranks, root, chunks_per_block and collective of `plan` itself.
Status check_head(const Plan& plan);

// Which instruction of a part; -1: none in particular.
struct Spot {
  int tb = -1;
  int step = -1;
};

// Every index of `part` in range, every operand that an opcode needs there and of the right direction. Assumes
// check_head(plan). A refusal names rank, TB and instruction, and sets `spot` to it where one is given.
Status check_part(const Plan& plan, const RankPlan& part, Spot* spot = nullptr);

const char* name_of(Opcode opcode);

// "rank 3, TB 2, step 5 (RecvReduceCopy, Output[4])"
std::string describe(int rank, size_t tb, size_t step, const Instruction& instruction);

}  // namespace theseus
