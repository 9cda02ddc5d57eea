// Reductions of host memory, one kernel for each element type and operation.
//
// Promises, for every kernel:
//   - pointers need no alignment, not even the element's; nothing outside [pointer, pointer + count) is touched;
//   - the destination may be exactly one of the sources (never overlap it in part);
//   - narrow floating types (fp16, bfloat16, fp8) compute in float and round to the type after every step;
//   - the bits of a result depend only on the operands and their order: not on the position in the buffer, on the
//     processor's instruction set, or on whether steps were folded in one call or chained;
//   - a NaN result is always the type's one canonical quiet NaN, so a + b and b + a agree in every bit;
//   - Max and Min: a number beats NaN, -0 is less than +0, and the result is one of the operands, fp8 infinity
//   included;
//   - integers wrap around.
#pragma once

#include <cstddef>

#include "base/types.h"

namespace theseus {

// dst[i] = op(left[i], right[i]).
using ReduceKernel = void (*)(void* dst, const void* left, const void* right, size_t count);

// dst = ((s0 op s1) op s2) ... in that order, in a single pass; 1 to 64 sources. One source is copied unchanged.
using FoldKernel = void (*)(void* dst, const void* const* sources, int sources_count, size_t count);

// dst[i] = src[i] * scalar; `scalar` points to one element, which need not be aligned.
using ScaleKernel = void (*)(void* dst, const void* src, size_t count, const void* scalar);

// Kernels for Sum, Prod, Max and Min; null for Avg and PreMulSum, which callers resolve to these first.
ReduceKernel reduce_kernel(DataType type, RedOp op);
FoldKernel fold_kernel(DataType type, RedOp op);
ScaleKernel scale_kernel(DataType type);

// The end of an integer Avg: data[i] /= ranks, truncating toward zero. `ranks` is at least 1. Other types are
// untouched.
void divide_in_place(DataType type, void* data, size_t count, int ranks);

// The scalar of a floating Avg, 1/ranks rounded to `type`, written to `out` (size_of(type) bytes).
// `ranks` is at least 1. Integer types write nothing.
void reciprocal(DataType type, int ranks, void* out);

}  // namespace theseus
