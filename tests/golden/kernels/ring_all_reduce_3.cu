// AllReduce by ring, rank 1 of 3.
#include "device/primitives.cuh"
using namespace theseus::device;
THESEUS_KERNEL(theseus_plan, Request, request) {
  THESEUS_SHARED(Frame, frame);
  Primitives<Numbers<Type::Float32, Reduction::Sum>, Protocol::Simple, false> tb(request, frame);
  tb.enter();
  switch (Tb::index()) {
    case 0:
      for (tb.begin_loop(0, 4); tb.in_loop(); tb.next()) {
        tb.send(0, input(0, 0), 1);
        tb.wait(1, 0, 0, 4, 2);
        tb.send(0, output(0, 1), 0);
        tb.wait(1, 0, 0, 4, 3);
        tb.send(0, output(0, 2), 3);
        if (!tb.send(0, output(0, 0), 0)) break;
      }
      break;
    case 1:
      for (tb.begin_loop(0, 4); tb.in_loop(); tb.next()) {
        tb.wait(0, 0, 0, 4, 1);
        tb.recv(1, output(0, 0), 0);
        tb.recv_reduce_copy(1, input(0, 1), output(0, 1), 2);
        tb.recv_reduce_copy(1, input(0, 2), output(0, 2), 3);
        tb.wait(0, 0, 0, 4, 3);
        if (!tb.recv(1, output(0, 2), 0)) break;
      }
      break;
  }
  tb.leave();
}
