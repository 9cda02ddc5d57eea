// AllReduce by ring, rank 1 of 3.
#include "device/primitives.cuh"
using namespace theseus::device;
THESEUS_KERNEL(theseus_plan, Request, request) {
  THESEUS_SHARED(Frame, frame);
  Primitives<Numbers<Type::Float32, Reduction::Sum>, Protocol::Simple, false> tb(request, frame);
  tb.enter();
  switch (Tb::index()) {
    case 0:
      for (tb.begin_loop(); tb.in_loop(); tb.next()) {
        if (!tb.send(0, input(0, 0))) return;
        tb.signal(0, 4, 1);
        tb.wait(1, 0, 0, 4, 2);
        if (!tb.send(0, output(0, 1))) return;
        tb.wait(1, 0, 0, 4, 3);
        if (!tb.send(0, output(0, 2))) return;
        tb.signal(0, 4, 3);
        if (!tb.send(0, output(0, 0))) return;
      }
      break;
    case 1:
      for (tb.begin_loop(); tb.in_loop(); tb.next()) {
        tb.wait(0, 0, 0, 4, 1);
        if (!tb.recv(1, output(0, 0))) return;
        if (!tb.recv_reduce_copy(1, input(0, 1), output(0, 1))) return;
        tb.signal(0, 4, 2);
        if (!tb.recv_reduce_copy(1, input(0, 2), output(0, 2))) return;
        tb.signal(0, 4, 3);
        tb.wait(0, 0, 0, 4, 3);
        if (!tb.recv(1, output(0, 2))) return;
      }
      break;
  }
  tb.leave();
}
