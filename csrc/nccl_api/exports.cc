// The exported symbols: pncclX is the function, ncclX a weak alias of it, so that a program or a profiler can put its
// own ncclX in front and call pncclX inside.
#include "nccl_api/api.h"
#include "nccl_api/forward.h"

// Parameters of unsupported functions have names in the table and no use here.
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define NCCL_CALL_native(name, arguments) return theseus::nccl_api::name arguments;
#define NCCL_CALL_either(name, arguments) return theseus::nccl_api::name arguments;
#define NCCL_CALL_forward(name, arguments) \
  return theseus::nccl_api::Forward<&theseus::nccl_api::RealNccl::name>{#name} arguments;
#define NCCL_CALL_unsupported(name, arguments) return theseus::nccl_api::unsupported(#name);

#define NCCL_FUNCTION(disposition, version, type, name, parameters, arguments)                        \
  [[gnu::visibility("default")]] type p##name parameters { NCCL_CALL_##disposition(name, arguments) } \
  [[gnu::visibility("default"), gnu::weak, gnu::nothrow, gnu::alias("p" #name)]] type name parameters;

#define NCCL_FUNCTION_WITHOUT_TWIN(disposition, version, type, name, parameters, arguments) \
  [[gnu::visibility("default")]] type name parameters { NCCL_CALL_##disposition(name, arguments) }

extern "C" {
#include "nccl_api/nccl_api.def"
}
