// An algorithm: what moves where, before anything is said about thread blocks, slots or kernels.
//
// The data of a collective is cut into `chunks` pieces of one data space:
//   AllReduce, Broadcast, Reduce   count elements, cut into `chunks`; input and output both cover all of it
//   AllGather, Gather              ranks * count elements; chunks = ranks * k; rank r's input is chunks [r*k, (r+1)*k)
//   ReduceScatter, Scatter         ranks * count elements; chunks = ranks * k; rank r's output is chunks [r*k, (r+1)*k)
//   AllToAll                       chunk (s * ranks + d) goes from input block d of rank s to output block s of rank d
// A chunk starts where the collective puts it (Input of the ranks that contribute it). A transfer takes the source's
// current version of the chunk; Copy replaces the destination's version, Reduce combines both.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"

namespace theseus {

enum class TransferOp : uint8_t { Copy, Reduce };

// `step` orders transfers of the same chunk: a transfer reads what all transfers of smaller steps left.
// Reduces that arrive at one rank for one chunk in the same step are folded in order of their lowest contributing
// rank, the rank's own value among them, so that the result's bits do not depend on who arrives first.
struct Transfer {
  int32_t src;
  int32_t dst;
  int32_t step;
  int32_t chunk;
  TransferOp op = TransferOp::Copy;
  int16_t rail = -1;  // -1: the executor's default for the pair (rail = chunk index modulo rails)
};

struct Algorithm {
  std::string name;  // "ring"
  Collective collective = Collective::AllReduce;
  int ranks = 1;
  int chunks = 1;
  int root = 0;  // Broadcast, Reduce, Gather, Scatter
  std::vector<Transfer> transfers;
};

}  // namespace theseus
