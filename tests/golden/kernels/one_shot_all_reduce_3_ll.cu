// AllReduce by one_shot, rank 0 of 3.
#include "device/primitives.cuh"
using namespace theseus::device;
THESEUS_KERNEL(theseus_plan, Request, request) {
  THESEUS_SHARED(Frame, frame);
  Primitives<Numbers<Type::Bfloat16, Reduction::Max>, Protocol::LL, true> tb(request, frame);
  tb.enter();
  switch (Tb::index()) {
    case 0:
      for (tb.begin_loop(0, 1); tb.in_loop(); tb.next()) {
        if (!tb.send(0, input(0, 0), 1)) break;
      }
      break;
    case 1:
      for (tb.begin_loop(0, 1); tb.in_loop(); tb.next()) {
        if (!tb.send(1, input(0, 0), 1)) break;
      }
      break;
    case 2:
      for (tb.begin_loop(0, 1); tb.in_loop(); tb.next()) {
        tb.wait(0, 0, 0, 1, 1);
        tb.wait(1, 0, 0, 1, 1);
        tb.operand(kLocalOperand, input(0, 0));
        tb.operand(2, kNowhere);
        tb.operand(3, kNowhere);
        if (!tb.fold(output(0, 0), 0)) break;
      }
      break;
  }
  tb.leave();
}
