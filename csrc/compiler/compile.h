// The compiler: from an algorithm to a plan, by way of tasks, sub-pipelines and thread blocks (ResCCL, sections 3.2
// and 3.3).
//
// Why no plan of it deadlocks. Pipeline::order is one order of all tasks for all ranks; no task depends on a later one,
// and sub-pipelines never fall along it. Order all instructions of all ranks by
//     (micro-batch, place of the task in that order, sends before receives)                  under MicroBatches,
//     (sub-pipeline, micro-batch, place of the task in that order, sends before receives)    under SubPipelines.
// A TB runs its instructions in that order, so program order goes up. A message's two ends belong to one task, hence to
// one sub-pipeline and micro-batch, and the send comes first. Both ends of a connection number its messages in that
// order, so the message whose slot the next one takes is below it, with one slot or more. A dependency inside a
// micro-batch follows a data dependency between two tasks, or leads, inside one task, from a send to a receive; one of
// distance 1 comes from the micro-batch before, and exists only under MicroBatches. So every wait goes down, and
// something can always go on. Where Pipeline::sends_first is set, all sends of a sub-pipeline stand before its
// receives: that too goes up, since dependencies lead to other sub-pipelines and a connection has one message in each.
// What `stagger` adds leads to a smaller sub-pipeline of the same micro-batch.
//
// Without slots (rendezvous) a send ends with its receive, so the two are one event, and what is above goes through
// unless a receive waits for a send of its own task: that is an exchange. Plans without exchanges say rendezvous_safe.
//
// A fused instruction takes the receive of task A and sends task B's message, at A's place. Its send is then below B's
// place, where its receive stays. Messages of a connection keep their order if the one before was sent below A, and
// the next slot is free if the one two before was received below A: both are asked for, so that two slots are enough.
// Under SubPipelines, A and B must share a sub-pipeline, or else the micro-batches of A would need a slot each.
#pragma once

#include "base/result.h"
#include "compiler/lower.h"
#include "compiler/pipeline.h"
#include "compiler/tb_allocation.h"
#include "schedule/algorithm.h"
#include "schedule/plan.h"
#include "schedule/topology.h"

namespace theseus {

struct CompileOptions {
  Scheduling scheduling = Scheduling::Hpds;            // PerConnection: the rest is ignored, and lower() does it
  TbAllocation allocation = TbAllocation::StateBased;  // StageLevel: always PerConnectionAndStage
  LoopOrder loop = LoopOrder::MicroBatches;
  // True: reductions that arrive in one step are one Fold, so that every rank reduces in the same order. False: a chain
  // of RecvReduceCopy in order of the lowest contributing rank, as the paper has it; a rank's own value then comes
  // first, so ranks that reduce the same chunk each for themselves (one_shot) may differ in the last bits.
  bool fold = true;
  // Passes on what arrives from, or leaves for, another host in one instruction, where that is safe with two slots.
  bool fuse = false;
  // A rank sends to another host only after it has sent something inside its own in the sub-pipeline before, of the
  // same micro-batch. Sub-pipelines keep the ranks of one NIC apart, but nothing else makes ranks begin them in turn:
  // these would all send at once, wait out their start-up times together, and leave the NIC idle meanwhile.
  bool stagger = false;
};

// Compiles the part of `rank`, or of all ranks; a rank's part is the same either way. The result depends on the
// arguments only. InvalidArgument: as build_tasks(), and where a rank would need more than 32,767 connections or TBs.
Result<Plan> compile(const Algorithm& algorithm, const Topology& topology, const CompileOptions& options = {},
                     int rank = kAllRanks);

// The same, where tasks and their order are at hand. `graph` must come from `algorithm` with options.fold.
Result<Plan> compile_tasks(const Algorithm& algorithm, const TaskGraph& graph, const Pipeline& pipeline,
                           const CompileOptions& options, int rank = kAllRanks);

}  // namespace theseus
