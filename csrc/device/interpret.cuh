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

  // Fills the frame for the next instruction, or says that there is none. Returns its place for complete().
  THESEUS_CALL static U32 prepare(const Request& request, Frame& frame) {
    if (frame.stop != 0) return 0;
    const Program& program = *request.program;
    if (frame.loop == program.blocks[Tb::index()].end) {
      frame.stop = kDone;
      return 0;
    }
    const Loop loop = program.loops[frame.loop];
    frame.width = loop.end - loop.first;
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
      Part::add_local(request, frame, step.dst.space, step.dst.block, step.dst.piece, true);
    }
    if (step.send != kNoLink) Part::add_link(request, frame, step.send, true);
    return step.silent != 0 ? 0 : frame.step - loop.first + 1;
  }

  // The instruction is done.
  THESEUS_CALL static void advance(const Request& request, Frame& frame) {
    const Program& program = *request.program;
    const Loop loop = program.loops[frame.loop];
    if (++frame.step < loop.end) return;
    frame.step = loop.first;
    if (++frame.micro_batch < request.micro_batches) return;
    frame.micro_batch = 0;
    frame.before += frame.width;
    if (++frame.loop < program.blocks[Tb::index()].end) frame.step = program.loops[frame.loop].first;
  }

 private:
  THESEUS_CALL static void add(const Request& request, Frame& frame, I32 link, const Location& local) {
    if (link == kLocalOperand) {
      Part::add_local(request, frame, local.space, local.block, local.piece, false);
    } else {
      Part::add_link(request, frame, link, false);
    }
  }
};

template <class Numbers, Protocol kProtocol, bool kScaling>
THESEUS_INLINE void interpret(const Request& request, Frame& frame) {
  using Work = Interpreter<Numbers, kProtocol, kScaling>;
  if (Tb::leads()) Work::enter(request, frame);
  THESEUS_ROLL
  for (;;) {
    const U32 place = Tb::leads() ? Work::prepare(request, frame) : 0;
    if (!complete<Numbers, kProtocol, kScaling>(request, frame, place)) break;
    if (Tb::leads()) Work::advance(request, frame);
  }
  if (Tb::leads()) Leader<Numbers, kProtocol, kScaling>::leave(request, frame);
}

}  // namespace theseus::device
