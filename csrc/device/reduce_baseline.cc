// The kernels with what every processor of the architecture has (SSE2 on x86-64, NEON on aarch64).
#define THESEUS_VECTOR_BYTES 16
#include "device/reduce_kernels.h"

namespace theseus {

constinit const KernelTable kBaselineKernels = make_table();

}  // namespace theseus
