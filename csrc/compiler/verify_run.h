// One run of one micro-batch of a plan: each TB goes as far as it can, until all are through or none can go on.
//
// Only the TB at its receiving end takes messages from a connection, only the one at its sending end fills it, and what
// is finished stays finished. So an instruction that can be issued can still be issued whatever others do first, and
// every run issues the same instructions as this one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compiler/plan_graph.h"

namespace theseus {

class SymbolicMemory;

// `count` consecutive instructions of a TB.
struct Segment {
  int32_t program;
  int32_t count;
};

struct Run {
  std::vector<Segment> segments;  // what was issued, in order
  std::vector<int32_t> finished;  // by program: how many of its instructions
  bool complete = true;           // all of them
  // Where not complete: what waits for what, and the program that the text begins with.
  std::string circle;
  int32_t stuck = -1;
};

// Connections hold `slots` messages. With none, a send is finished when its receiver is, and its TB waits for that;
// such a run, where it completes, is a run with any number of slots as well. Each instruction that is issued is
// executed on `memory`, if there is one.
Run run_once(const PlanGraph& graph, int slots, SymbolicMemory* memory);

// All of `run` as an interleaving of micro-batch 0.
std::vector<Occurrence> occurrences(const PlanGraph& graph, const Run& run);

}  // namespace theseus
