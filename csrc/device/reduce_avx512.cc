// The kernels with AVX-512 (F, BW, DQ, VL).
#if defined(__x86_64__)

#define THESEUS_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")))
#define THESEUS_VECTOR_BYTES 64
#include "device/reduce_kernels.h"

namespace theseus {

constinit const KernelTable kAvx512Kernels = make_table();

}  // namespace theseus

#endif
