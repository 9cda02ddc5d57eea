#include "executor/shape.h"

#include <algorithm>

namespace theseus {
namespace {

// From this size on what arrives in pieces goes around the caches: no cache would hold it until it is read again.
constexpr size_t kSmallestStreamedRequest = 32 << 20;

}  // namespace

Shape shape_of(const Program& program, const ShapeKey& key) {
  Shape shape;
  shape.element = size_of(key.type);
  const auto pieces = static_cast<size_t>(program.chunks_per_block());
  shape.chunk = key.count / pieces;
  shape.longer = key.count % pieces;
  shape.piece = std::max<size_t>(1, key.piece_bytes / shape.element);
  const size_t longest = shape.chunk + (shape.longer > 0 ? 1 : 0);
  shape.micro_batches = longest == 0 ? 1 : static_cast<uint32_t>((longest + shape.piece - 1) / shape.piece);
  shape.reduce = reduce_kernel(key.type, key.op);
  shape.fold = fold_kernel(key.type, key.op);
  shape.scale = scale_kernel(key.type);
  shape.longest_message = std::min(shape.piece, longest) * shape.element;
  shape.scratch_rounds = program.scratch_holds_chunks() ? shape.micro_batches : 1;
  shape.scratch_stride = shape.scratch_rounds > 1 ? longest * shape.element : shape.longest_message;
  const auto scratch_chunks = static_cast<size_t>(program.scratch_chunks());
  shape.scratch_bytes = scratch_chunks * shape.scratch_stride;
  shape.scratch_lengths = scratch_chunks * shape.scratch_rounds;
  // A reduction reads its operands once, straight from a slot; fetching a peer's memory first would be a second pass.
  // Where data goes one way (Broadcast), the sender's core would idle meanwhile, if it has one of its own.
  const bool one_way = program.recv_ports().empty() || program.send_ports().empty();
  const size_t bytes = key.count * shape.element;
  const bool piecewise = shape.micro_batches > 1 && bytes > kLargestPiecewiseFetch;
  shape.total = program.reduces() || one_way ? kNeverFetch : piecewise ? kFetchIfCrowded : bytes;
  shape.streaming = bytes >= kSmallestStreamedRequest;
  return shape;
}

}  // namespace theseus
