// Two ranks pass data round by the primitives of device code, an OS thread for each CUDA thread: small and plain, so
// that ThreadSanitizer sees every flag at work. Compiled and run by test_flags.py, with one flag weakened or none.
//
// Rank 0 sends a value a micro-batch, and reduces what comes back. Rank 1 receives it in one TB and returns it from
// another, which waits for the first; the first waits for the second before it writes scratch again.
#include "device/primitives.cuh"

#include <cstdio>
#include <vector>

#include "unit/executor/device_run.h"

using namespace theseus::device;
using theseus::testing::KernelLaunch;

using Floats = Numbers<Type::Float32, Reduction::Sum>;

template <Protocol kProtocol>
void rank_0(const Request& request, Frame& frame) {
  Primitives<Floats, kProtocol, false> tb(request, frame);
  tb.enter();
  for (tb.begin_loop(0, 1); tb.in_loop(); tb.next()) {
    if (Tb::index() == 0 && !tb.send(0, input(0, 0), 0)) break;
    if (Tb::index() == 1 && !tb.recv_reduce_copy(1, input(0, 0), output(0, 0), 0)) break;
  }
  tb.leave();
}

template <Protocol kProtocol>
void rank_1(const Request& request, Frame& frame) {
  Primitives<Floats, kProtocol, false> tb(request, frame);
  tb.enter();
  for (tb.begin_loop(0, 1); tb.in_loop(); tb.next()) {
    if (Tb::index() == 0) {
      tb.wait(1, 1, 0, 1, 1);
      if (!tb.recv(0, scratch(0), 1)) break;
    } else {
      tb.wait(0, 0, 0, 1, 1);
      if (!tb.send(1, scratch(0), 1)) break;
    }
  }
  tb.leave();
}

THESEUS_KERNEL(simple_0, Request, request) {
  THESEUS_SHARED(Frame, frame);
  rank_0<Protocol::Simple>(request, frame);
}
THESEUS_KERNEL(simple_1, Request, request) {
  THESEUS_SHARED(Frame, frame);
  rank_1<Protocol::Simple>(request, frame);
}
THESEUS_KERNEL(ll_0, Request, request) {
  THESEUS_SHARED(Frame, frame);
  rank_0<Protocol::LL>(request, frame);
}
THESEUS_KERNEL(ll_1, Request, request) {
  THESEUS_SHARED(Frame, frame);
  rank_1<Protocol::LL>(request, frame);
}

namespace {

constexpr U32 kPiece = 24;  // elements
constexpr U32 kRounds = 40;
constexpr U32 kSlots = 2;
constexpr U32 kLines = 13;

struct alignas(16) Channel {
  U8 slots[kSlots * kPiece * 4] = {};
  U64 lines[kSlots * kLines * 2] = {};
  U64 posted[kSlots] = {};
  U64 taken = 0;
  Link end() { return {slots, posted, lines, &taken, 0, 0, kPiece * 4, kSlots, kLines}; }
};

struct alignas(16) Rank {
  float input[kPiece * kRounds] = {};
  float output[kPiece * kRounds] = {};
  U8 scratch[kPiece * 4] = {};
  U32 scratch_lengths[1] = {};
  U64 finished[2 * kFinishedStride] = {};
  Progress progress = {0, 0, finished};
  U32 abort = 0;
  U64 fault = 0;
  Link ends[2];
  Link* links[2] = {&ends[0], &ends[1]};

  Request request(Protocol protocol) {
    Request request = {};
    request.input = input;
    request.output = output;
    request.scratch = scratch;
    request.scratch_lengths = scratch_lengths;
    request.links = links;
    request.progress = &progress;
    request.abort = &abort;
    request.fault = &fault;
    request.count = request.chunk = kPiece * kRounds;
    request.piece = kPiece;
    request.micro_batches = kRounds;
    request.scratch_rounds = 1;
    request.scratch_stride = kPiece * 4;
    request.type = Type::Float32;
    request.protocol = protocol;
    return request;
  }
};

}  // namespace

int main() {
  Channel there, back;
  Rank ranks[2];
  ranks[0].ends[0] = ranks[1].ends[0] = there.end();
  ranks[0].ends[1] = ranks[1].ends[1] = back.end();
  for (U32 i = 0; i < kPiece * kRounds; ++i) ranks[0].input[i] = static_cast<float>(i);
  for (const Protocol protocol : {Protocol::Simple, Protocol::LL, Protocol::Simple}) {
    const Request requests[2] = {ranks[0].request(protocol), ranks[1].request(protocol)};
    const bool ll = protocol == Protocol::LL;
    theseus::testing::run_in_threads({KernelLaunch{ll ? ll_0 : simple_0, &requests[0], 2, 2},
                                      KernelLaunch{ll ? ll_1 : simple_1, &requests[1], 2, 2}});
    for (U32 i = 0; i < kPiece * kRounds; ++i) {
      if (ranks[0].output[i] != 2.0f * static_cast<float>(i)) return std::puts("wrong result"), 1;
      ranks[0].output[i] = 0;
    }
  }
  return 0;
}
