// One request under way on the host: a Program bound to buffers, advanced by whoever waits for it. One Execution serves
// a communicator's requests one after the other, whatever their programs: they share its memory.
//
// Thread blocks are resumable programs. advance() lets each run until it would block and never waits itself, so that
// one thread can drive many executions. A thread block's instruction is issued when its operands are there, and
// finished at once, except a Send by reference, which is finished when the receiver has released it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "executor/program.h"
#include "executor/shape.h"

namespace theseus {

struct Binding {
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;  // elements of one block (what the caller passed)
  DataType type = DataType::Float32;
  RedOp op = RedOp::Sum;           // Sum, Prod, Max, Min
  const void* scalar = nullptr;    // scales what is read from Input; one element
  size_t piece_bytes = 128 << 10;  // longest message; equal on all ranks
  SignatureTag tag;
};

enum class Advance { Blocked, Progressed, Done, Failed };

class Execution {
 public:
  Execution() = default;
  // Of requests that all run this program, which outlives it.
  explicit Execution(const Program& program) : own_program_(&program) {}

  // Ready to advance(). Program, shape, the binding's buffers and its scalar stay valid until Done; `shape` is of the
  // program, and binding.piece_bytes is not looked at. After Failed: never again.
  void start(const Program& program, const Shape& shape, const Binding& binding);
  // The same with the constructor's program.
  void start(const Binding& binding);
  Advance advance();
  const Status& status() const { return status_; }

  // Memory for Scratch, used by one request after the other; start() makes it larger where it has to. Not while a
  // request is under way. What was in it is lost.
  size_t arena_bytes() const { return arena_bytes_; }
  void resize_arena(size_t bytes);
  // All memory that it holds.
  size_t bytes() const;

 private:
  struct Range {
    size_t offset;  // elements
    size_t length;
  };
  struct BlockState {       // half a cache line
    uint32_t position = 0;  // in the block's steps
    uint32_t micro_batch = 0;
    uint64_t issued = 0;      // steps issued, over all micro-batches
    uint32_t loop_begin = 0;  // the loop over micro-batches that it is in
    uint32_t loop_end = 0;
    uint16_t oldest = 0;  // of its references that may still be out, in references_
    uint16_t out = 0;     // how many those are
    bool over = false;    // all issued and finished
  };
  // A Send by reference that its receiver may not have released yet.
  struct PostedReference {
    uint64_t step;  // steps of its block issued before it
    SendPort* port;
    uint64_t ticket;  // released() value that ends it
  };
  static constexpr uint32_t kMostReferences = 8;  // of one block at a time; a port has no more slots

  // The newest copy of a group's data for one micro-batch, in a slot that other receivers can read as well.
  struct SharedCopy {
    SendPort* port = nullptr;
    uint64_t ticket = 0;
    uint32_t micro_batch = 0;
  };
  static constexpr size_t kSharedCopies = 8;

  void adopt(const Program& program, const Shape& shape);
  void begin(const Binding& binding);
  bool run_block(size_t index);
  void next_loop(const Program::Block& block, BlockState& state);
  bool satisfied(const Step& step, uint32_t micro_batch);
  uint64_t finished(BlockState& state);
  bool execute(const Step& step, BlockState& state);
  bool send(const Step& step, BlockState& state);
  bool post_reference(const Step& step, BlockState& state, const void* source, size_t bytes);
  bool receive(const Step& step, BlockState& state);
  void copy_received(void* destination, const void* source, size_t bytes) const;
  bool receive_send(const Step& step, BlockState& state);
  bool fold(const Step& step, BlockState& state);
  void local(const Step& step, BlockState& state);

  // How many elements one micro-batch of a Scratch index holds.
  size_t& scratch_length(const Location& location, uint32_t micro_batch) {
    return scratch_lengths_[static_cast<size_t>(location.piece) * shape_->scratch_rounds +
                            (shape_->scratch_rounds > 1 ? micro_batch : 0)];
  }
  Range range_of(const Location& location, uint32_t micro_batch);
  uint8_t* address(const Location& location, size_t offset);
  const void* operand(const Location& location, const Range& range, size_t lane);
  const Message* arrived(RecvPort& port);
  const void* contents(RecvPort& port, const Message& message, size_t lane);
  uint8_t* bounce(size_t lane);
  void mismatch(RecvPort& port);

  const Program* program_ = nullptr;
  Binding binding_;
  const Shape* shape_ = nullptr;
  bool by_reference_ = false;
  std::vector<BlockState> states_;
  std::vector<std::array<PostedReference, kMostReferences>> references_;  // by block: a ring
  std::vector<std::array<SharedCopy, kSharedCopies>> copies_;             // by group and micro-batch
  size_t unfinished_ = 0;
  std::unique_ptr<uint8_t[]> arena_;
  size_t arena_bytes_ = 0;
  std::vector<size_t> scratch_lengths_;
  std::vector<std::vector<uint8_t>> bounces_;
  Status status_;

  const Program* own_program_ = nullptr;
  ShapeKey own_key_;
  Shape own_shape_;
  bool own_shaped_ = false;  // own_shape_ is that of own_key_
};

}  // namespace theseus
