#include "base/types.h"

namespace theseus {

const char* name_of(Collective collective) {
  static constexpr const char* names[kCollectives] = {"AllReduce", "AllGather", "ReduceScatter", "Broadcast",
                                                      "Reduce",    "AllToAll",  "Gather",        "Scatter",
                                                      "AllToAllV", "SendRecv",  "Barrier"};
  return names[static_cast<int>(collective)];
}

const char* name_of(DataType type) {
  static constexpr const char* names[kDataTypes] = {"int8",    "uint8",    "int32",       "uint32",
                                                    "int64",   "uint64",   "float16",     "float32",
                                                    "float64", "bfloat16", "float8_e4m3", "float8_e5m2"};
  return names[static_cast<int>(type)];
}

const char* name_of(RedOp op) {
  static constexpr const char* names[kRedOps] = {"sum", "prod", "max", "min", "avg", "premulsum"};
  return names[static_cast<int>(op)];
}

}  // namespace theseus
