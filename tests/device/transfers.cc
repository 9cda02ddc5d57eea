// Two ranks send to each other by the kernel of transfers, an OS thread for each CUDA thread, so that ThreadSanitizer
// sees its flags at work. Compiled and run by test_flags.py, with one flag weakened or none.
#include <algorithm>
#include <cstdio>

#include "device/transfer.cuh"
#include "unit/executor/transfer_world.h"

using namespace theseus::device;

THESEUS_KERNEL(transfers, TransferRequest, request) {
  THESEUS_SHARED(TransferJob, job);
  transfer(request, job);
}

int main() {
  theseus::testing::TransferWorld world(2, {});
  for (int launch = 0; launch < 3; ++launch) {
    for (const size_t bytes : {size_t{5000}, size_t{0}, size_t{100}, size_t{700}, size_t{9}, size_t{2000}}) {
      world.add(0, 1, bytes, 1 + static_cast<U32>(bytes / 2000));
      world.add(1, 0, bytes, 1 + static_cast<U32>(bytes / 2000));
    }
    // Fewer TBs than lanes, so that a TB serves several.
    theseus::testing::run_in_threads(world.launches(transfers, 2, 2));
    if (!world.all_arrived()) return std::puts("wrong result"), 1;
  }
  return 0;
}
