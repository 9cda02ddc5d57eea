// The kernel that runs any plan, read from memory as it goes: what a request runs on until its own kernel is there.
// Only the leading thread reads the plan; to the others an instruction is what the frame says.
#pragma once

#include "device/primitives.cuh"

namespace theseus::device {

template <class Numbers, Protocol kProtocol, bool kScaling>
struct Interpreter {
  using Part = Leader<Numbers, kProtocol, kScaling>;

  THESEUS_INLINE static void enter(const Request& request, Frame& frame) {
    Part::enter(request, frame);
    const Program& program = *request.program;
    frame.loop = program.blocks[Tb::index()].first;
    frame.before = 0;
    if (frame.loop < program.blocks[Tb::index()].end) frame.step = program.loops[frame.loop].first;
  }

  // Fills the frame for the next instruction, or says that there is none.
  THESEUS_CALL static void prepare(const Request& request, Frame& frame) {
    if (frame.stop != 0) return;
    const Program& program = *request.program;
    if (frame.loop == program.blocks[Tb::index()].end) {
      frame.stop = kDone;
      return;
    }
    const Step& step = program.steps[frame.step];
    THESEUS_ROLL
    for (U32 i = 0; i < step.waits; ++i) {
      const Wait& wait = program.waits[step.first_wait + i];
      Part::wait(request, frame, wait.block, wait.distance, wait.before, wait.width, wait.place);
    }
    // An instruction names what it has to do with, and nothing else (schedule/check.h). The order of its sources
    // matters to a Fold alone.
    THESEUS_ROLL
    for (U32 i = 0; i < step.operands; ++i) add(request, frame, program.operands[step.first_operand + i], step.src);
    if (step.operands == 0) {
      if (step.recv != kNoLink) add(request, frame, step.recv, step.src);
      if (step.src.space != Space::None) add(request, frame, kLocalOperand, step.src);
      if (step.op == Op::Reduce) add(request, frame, kLocalOperand, step.dst);
    }
    if (step.dst.space != Space::None) {
      Part::set_target(request, frame, step.dst.space, step.dst.block, step.dst.piece);
    }
    if (step.send != kNoLink) Part::set_slot(request, frame, step.send);
  }

  // The instruction is done.
  THESEUS_CALL static void advance(const Request& request, Frame& frame) {
    const Program& program = *request.program;
    const Loop loop = program.loops[frame.loop];
    const U32 width = loop.end - loop.first;
    const Step& step = program.steps[frame.step++];
    if (step.silent == 0) Part::signal(request, frame, frame.before, width, frame.step - loop.first);
    if (frame.step < loop.end) return;
    frame.step = loop.first;
    if (++frame.micro_batch < request.micro_batches) return;
    frame.micro_batch = 0;
    frame.before += width;
    if (++frame.loop < program.blocks[Tb::index()].end) frame.step = program.loops[frame.loop].first;
  }

 private:
  THESEUS_CALL static void add(const Request& request, Frame& frame, I32 link, const Location& local) {
    if (link == kLocalOperand) {
      Part::add_local(request, frame, local.space, local.block, local.piece);
    } else {
      Part::add_message(request, frame, link);
    }
  }
};

template <class Numbers, Protocol kProtocol, bool kScaling>
THESEUS_INLINE void interpret(const Request& request, Frame& frame) {
  using Work = Interpreter<Numbers, kProtocol, kScaling>;
  if (Tb::leads()) Work::enter(request, frame);
  THESEUS_ROLL
  for (;;) {
    if (Tb::leads()) Work::prepare(request, frame);
    if (!complete<Numbers, kProtocol, kScaling>(request, frame)) break;
    if (Tb::leads()) Work::advance(request, frame);
  }
  if (Tb::leads() && frame.stop == kDone) Leader<Numbers, kProtocol, kScaling>::leave(request);
}

}  // namespace theseus::device
