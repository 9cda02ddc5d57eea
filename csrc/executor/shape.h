// How a request's elements are cut for a program: what follows from count, type, operation and piece size alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "device/reduce.h"
#include "executor/program.h"

namespace theseus {

struct ShapeKey {
  size_t count = 0;        // elements of one block
  size_t piece_bytes = 0;  // longest message; equal on all ranks
  DataType type = DataType::Float32;
  RedOp op = RedOp::Sum;
  bool operator==(const ShapeKey&) const = default;
};

// Lengths are in elements unless they say bytes.
struct Shape {
  size_t element = 4;  // bytes
  size_t piece = 0;    // of a full micro-batch of one chunk
  size_t chunk = 0;    // of the shorter chunks
  size_t longer = 0;   // the first `longer` pieces of a block have one more
  uint32_t micro_batches = 1;
  uint32_t scratch_rounds = 1;  // micro-batches that a Scratch index holds
  size_t scratch_stride = 0;    // bytes of one index
  size_t scratch_bytes = 0;     // of all
  size_t scratch_lengths = 0;   // how many micro-batches of indices there are
  size_t longest_message = 0;   // bytes
  size_t total = 0;             // what can_reference() is told
  bool streaming = false;       // what arrives goes around the caches
  ReduceKernel reduce = nullptr;
  FoldKernel fold = nullptr;
  ScaleKernel scale = nullptr;
};

Shape shape_of(const Program& program, const ShapeKey& key);

}  // namespace theseus
