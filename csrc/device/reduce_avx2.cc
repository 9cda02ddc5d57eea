// The kernels with AVX2 and F16C.
#if defined(__x86_64__)

#define THESEUS_TARGET __attribute__((target("avx2,f16c")))
#define THESEUS_VECTOR_BYTES 32
#include "device/reduce_kernels.h"

namespace theseus {

constinit const KernelTable kAvx2Kernels = make_table();

}  // namespace theseus

#endif
