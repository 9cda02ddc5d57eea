// The words every layer shares: collectives, element types, reductions.
// Values of DataType and RedOp equal NCCL's (nccl.h), so that the C API casts and never translates.
#pragma once

#include <cstddef>
#include <cstdint>

namespace theseus {

enum class Collective : uint8_t {
  AllReduce,
  AllGather,
  ReduceScatter,
  Broadcast,
  Reduce,
  AllToAll,
  Gather,
  Scatter,
  AllToAllV,  // uneven splits; runs as grouped point-to-point
  SendRecv,
  Barrier,
};
inline constexpr int kCollectives = 11;

enum class DataType : uint8_t {
  Int8 = 0,
  Uint8 = 1,
  Int32 = 2,
  Uint32 = 3,
  Int64 = 4,
  Uint64 = 5,
  Float16 = 6,
  Float32 = 7,
  Float64 = 8,
  Bfloat16 = 9,
  Float8e4m3 = 10,
  Float8e5m2 = 11,
};
inline constexpr int kDataTypes = 12;

// Avg and PreMulSum are resolved before the data path: floating Avg scales each input by 1/n and sums,
// integer Avg sums and divides at the end (truncating toward zero), PreMulSum scales each input.
enum class RedOp : uint8_t { Sum = 0, Prod = 1, Max = 2, Min = 3, Avg = 4, PreMulSum = 5 };
inline constexpr int kRedOps = 6;

constexpr size_t size_of(DataType type) {
  constexpr uint8_t sizes[kDataTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return sizes[static_cast<int>(type)];
}

constexpr bool is_floating(DataType type) { return type >= DataType::Float16; }

const char* name_of(Collective collective);  // "AllReduce"
const char* name_of(DataType type);          // "float32"
const char* name_of(RedOp op);               // "sum"

}  // namespace theseus
