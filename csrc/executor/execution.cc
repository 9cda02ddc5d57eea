#include "executor/execution.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "device/copy.h"

namespace theseus {
namespace {

// Below this a copy is cheaper than waiting for the receiver to be done with the buffer.
constexpr size_t kSmallestReference = 4096;
// Up to this a copy of one's own is cheaper than a second look at another connection's slot.
constexpr size_t kLargestUnshared = 2048;

// From this size on a copy inside a rank goes around the caches: no cache would hold it until it is read again.
constexpr size_t kSmallestStreamed = 4 << 20;
// The same for what arrives in pieces (Shape::streaming), where a piece is long enough to be worth the fence.
constexpr size_t kSmallestStreamedPiece = 16 << 10;

}  // namespace

void Execution::start(const Program& program, const Shape& shape, const Binding& binding) {
  adopt(program, shape);
  begin(binding);
}

void Execution::start(const Binding& binding) {
  const ShapeKey key{binding.count, binding.piece_bytes, binding.type, binding.op};
  if (!own_shaped_ || key != own_key_) {
    own_shape_ = shape_of(*own_program_, key);
    own_key_ = key;
    own_shaped_ = true;
  }
  start(*own_program_, own_shape_, binding);
}

void Execution::adopt(const Program& program, const Shape& shape) {
  program_ = &program;
  shape_ = &shape;
  // What lies in Scratch is written in a request before it is read there, and its length with it.
  if (scratch_lengths_.size() < shape.scratch_lengths) scratch_lengths_.resize(shape.scratch_lengths);
  if (shape.scratch_bytes > arena_bytes_) resize_arena(shape.scratch_bytes);
  const size_t blocks = program.blocks().size();
  const auto groups = static_cast<size_t>(program.copy_groups());
  if (states_.size() != blocks) states_.resize(blocks);
  if (references_.size() < blocks) references_.resize(blocks);
  if (copies_.size() != groups) copies_.resize(groups);
}

void Execution::begin(const Binding& binding) {
  binding_ = binding;
  by_reference_ = program_->rendezvous_safe() && binding.scalar == nullptr;
  unfinished_ = states_.size();
  for (size_t i = 0; i < states_.size(); ++i) {
    states_[i] = {};
    states_[i].loop_end = program_->blocks()[i].loop_end;
  }
  for (auto& group : copies_) group = {};
  for (SendPort* port : program_->send_ports()) port->set_tag(binding_.tag);
}

void Execution::resize_arena(size_t bytes) {
  arena_.reset();
  arena_ = std::make_unique_for_overwrite<uint8_t[]>(bytes);
  arena_bytes_ = bytes;
}

size_t Execution::bytes() const {
  size_t bytes = sizeof *this + arena_bytes_ + states_.capacity() * sizeof(BlockState) +
                 references_.capacity() * sizeof(references_[0]) + copies_.capacity() * sizeof(copies_[0]) +
                 scratch_lengths_.capacity() * sizeof(size_t);
  for (const auto& room : bounces_) bytes += sizeof room + room.capacity();
  return bytes;
}

Advance Execution::advance() {
  bool progressed = false;
  for (size_t index = 0; index < states_.size(); ++index) progressed |= run_block(index);
  if (!status_.ok()) [[unlikely]]
    return Advance::Failed;
  if (unfinished_ == 0) return Advance::Done;
  return progressed ? Advance::Progressed : Advance::Blocked;
}

// Runs one thread block until it blocks; true if anything moved.
bool Execution::run_block(size_t index) {
  const Program::Block& block = program_->blocks()[index];
  BlockState& state = states_[index];
  if (state.over) return false;
  bool progressed = false;
  while (state.micro_batch < shape_->micro_batches) {
    if (state.position == state.loop_end) {
      state.position = state.loop_begin;
      if (++state.micro_batch == shape_->micro_batches && state.loop_end < block.count) next_loop(block, state);
      continue;
    }
    const Step& step = block.steps[state.position];
    if (!step.waits.empty() && !satisfied(step, state.micro_batch)) return progressed;
    if (!execute(step, state)) return progressed;
    ++state.position;
    ++state.issued;
    progressed = true;
  }
  if (finished(state) < state.issued) return progressed;
  state.over = true;
  --unfinished_;
  return true;
}

void Execution::next_loop(const Program::Block& block, BlockState& state) {
  state.position = state.loop_begin = state.loop_end;
  state.loop_end = block.steps[state.position].loop_end;
  state.micro_batch = 0;
}

// Instructions of a block that are done for good, counted from its first: those before the oldest Send whose receiver
// has not yet let go of the reference, whatever was issued after it.
uint64_t Execution::finished(BlockState& state) {
  if (state.out == 0) [[likely]]
    return state.issued;
  const auto& ring = references_[static_cast<size_t>(&state - states_.data())];
  while (state.out > 0) {
    const PostedReference& reference = ring[state.oldest];
    if (reference.port->released() < reference.ticket) return reference.step;
    state.oldest = static_cast<uint16_t>((state.oldest + 1) % kMostReferences);
    --state.out;
  }
  return state.issued;
}

bool Execution::satisfied(const Step& step, uint32_t micro_batch) {
  for (const Wait& wait : step.waits) {
    if (wait.distance > micro_batch) continue;
    const uint64_t rounds = micro_batch - wait.distance;
    const uint64_t needed = uint64_t{wait.before} * shape_->micro_batches + rounds * wait.width + wait.place;
    if (finished(states_[wait.tb]) < needed) return false;
  }
  return true;
}

bool Execution::execute(const Step& step, BlockState& state) {
  switch (step.opcode) {
    case Opcode::Nop: return true;
    case Opcode::Send: return send(step, state);
    case Opcode::Recv:
    case Opcode::RecvReduceCopy: return receive(step, state);
    case Opcode::RecvCopySend:
    case Opcode::RecvReduceSend:
    case Opcode::RecvReduceCopySend: return receive_send(step, state);
    case Opcode::Fold: return fold(step, state);
    case Opcode::Copy:
    case Opcode::Reduce: local(step, state); return true;
  }
  return true;
}

bool Execution::send(const Step& step, BlockState& state) {
  const Range range = range_of(step.src, state.micro_batch);
  const size_t bytes = range.length * shape_->element;
  const void* source = address(step.src, range.offset);
  if (by_reference_ && bytes > kSmallestReference && step.send->can_reference(source, bytes, shape_->total)) {
    return post_reference(step, state, source, bytes);
  }
  SharedCopy* copy = nullptr;
  if (step.copies >= 0 && bytes > kLargestUnshared) {
    copy = &copies_[step.copies][state.micro_batch % kSharedCopies];
    if (copy->port != nullptr && copy->micro_batch == state.micro_batch &&
        step.send->can_share(*copy->port, copy->ticket)) {
      return step.send->share(*copy->port, copy->ticket, bytes);
    }
  }
  void* slot = step.send->acquire(bytes);
  if (slot == nullptr) return false;
  if (binding_.scalar != nullptr && step.src.buffer == Buffer::Input) {
    shape_->scale(slot, source, range.length, binding_.scalar);
  } else {
    copy_bytes(slot, source, bytes);
  }
  step.send->commit(bytes);
  if (copy != nullptr) *copy = {step.send, step.send->posted(), state.micro_batch};
  return true;
}

bool Execution::post_reference(const Step& step, BlockState& state, const void* source, size_t bytes) {
  if (state.out == kMostReferences && (finished(state), state.out == kMostReferences)) return false;
  if (!step.send->post_reference(source, bytes)) return false;
  auto& ring = references_[static_cast<size_t>(&state - states_.data())];
  ring[(state.oldest + state.out) % kMostReferences] = {state.issued, step.send, step.send->posted()};
  ++state.out;
  return true;
}

void Execution::copy_received(void* destination, const void* source, size_t bytes) const {
  if (shape_->streaming && bytes >= kSmallestStreamedPiece) {
    copy_streaming(destination, source, bytes);
  } else {
    copy_bytes(destination, source, bytes);
  }
}

bool Execution::receive(const Step& step, BlockState& state) {
  const Message* message = arrived(*step.recv);
  if (message == nullptr) return false;
  const Range range = range_of(step.dst, state.micro_batch);
  const size_t length = step.dst.buffer == Buffer::Scratch ? message->bytes / shape_->element : range.length;
  if (message->bytes != length * shape_->element) return mismatch(*step.recv), false;
  void* destination = address(step.dst, range.offset);
  if (step.opcode == Opcode::Recv) {
    if (message->data == nullptr) {
      if (Status status = step.recv->fetch(destination, 0, message->bytes); !status.ok())
        return status_ = status, false;
    } else {
      copy_received(destination, message->data, message->bytes);
    }
  } else {
    const Range source = range_of(step.src, state.micro_batch);
    const void* own = operand(step.src, {source.offset, length}, 0);
    const void* other = contents(*step.recv, *message, 1);
    if (other == nullptr) return false;
    if (step.recv_is_left) {
      shape_->reduce(destination, other, own, length);
    } else {
      shape_->reduce(destination, own, other, length);
    }
  }
  if (step.dst.buffer == Buffer::Scratch) scratch_length(step.dst, state.micro_batch) = length;
  step.recv->release();
  return true;
}

// The fused forms: what arrives goes on to the next rank without a second pass over memory.
bool Execution::receive_send(const Step& step, BlockState& state) {
  const Message* message = arrived(*step.recv);
  if (message == nullptr) return false;
  const size_t bytes = message->bytes;
  const size_t length = bytes / shape_->element;
  void* slot = step.send->acquire(bytes);
  if (slot == nullptr) return false;
  const void* other = contents(*step.recv, *message, 1);
  if (other == nullptr) return false;
  if (step.opcode == Opcode::RecvCopySend) {
    const Range range = range_of(step.dst, state.micro_batch);
    if (step.dst.buffer != Buffer::None) {
      if (step.dst.buffer != Buffer::Scratch && range.length != length) return mismatch(*step.recv), false;
      copy_bytes(address(step.dst, range.offset), other, bytes);
    }
    copy_bytes(slot, other, bytes);
  } else {
    const Range range = range_of(step.src, state.micro_batch);
    if (step.src.buffer != Buffer::Scratch && range.length != length) return mismatch(*step.recv), false;
    const void* own = operand(step.src, {range.offset, length}, 0);
    void* target = step.opcode == Opcode::RecvReduceCopySend
                       ? address(step.dst, range_of(step.dst, state.micro_batch).offset)
                       : slot;
    if (step.recv_is_left) {
      shape_->reduce(target, other, own, length);
    } else {
      shape_->reduce(target, own, other, length);
    }
    if (target != slot) copy_bytes(slot, target, bytes);
  }
  if (step.dst.buffer == Buffer::Scratch) scratch_length(step.dst, state.micro_batch) = length;
  step.send->commit(bytes);
  step.recv->release();
  return true;
}

bool Execution::fold(const Step& step, BlockState& state) {
  for (RecvPort* port : step.fold) {
    if (port != nullptr && arrived(*port) == nullptr) return false;
  }
  const Range range = range_of(step.dst, state.micro_batch);
  size_t length = range.length;
  if (step.dst.buffer == Buffer::Scratch) {  // as long as what is put there
    for (RecvPort* port : step.fold) {
      if (port != nullptr) length = port->peek()->bytes / shape_->element;
    }
  }
  std::array<const void*, kMostOperands> operands;
  size_t count = 0;
  for (RecvPort* port : step.fold) {
    if (port == nullptr) {
      operands[count] = operand(step.src, {range_of(step.src, state.micro_batch).offset, length}, count);
    } else {
      const Message* message = port->peek();
      if (message->bytes != length * shape_->element) return mismatch(*port), false;
      operands[count] = contents(*port, *message, count);
      if (operands[count] == nullptr) return false;
    }
    ++count;
  }
  shape_->fold(address(step.dst, range.offset), operands.data(), static_cast<int>(count), length);
  if (step.dst.buffer == Buffer::Scratch) scratch_length(step.dst, state.micro_batch) = length;
  for (RecvPort* port : step.fold) {
    if (port != nullptr) port->release();
  }
  return true;
}

void Execution::local(const Step& step, BlockState& state) {
  const Range range = range_of(step.src, state.micro_batch);
  void* destination = address(step.dst, range_of(step.dst, state.micro_batch).offset);
  const void* source = operand(step.src, range, 0);
  if (step.opcode == Opcode::Reduce) {
    shape_->reduce(destination, destination, source, range.length);
  } else if (destination != source) {
    const size_t bytes = range.length * shape_->element;
    if (bytes >= kSmallestStreamed) {
      copy_streaming(destination, source, bytes);
    } else {
      copy_bytes(destination, source, bytes);
    }
  }
  if (step.dst.buffer == Buffer::Scratch) scratch_length(step.dst, state.micro_batch) = range.length;
}

Execution::Range Execution::range_of(const Location& location, uint32_t micro_batch) {
  if (location.buffer == Buffer::Scratch) {
    return {shape_->scratch_rounds > 1 ? micro_batch * shape_->piece : 0, scratch_length(location, micro_batch)};
  }
  const size_t piece = static_cast<size_t>(location.piece);
  const size_t length = shape_->chunk + (piece < shape_->longer ? 1 : 0);
  const size_t start =
      static_cast<size_t>(location.block) * binding_.count + piece * shape_->chunk + std::min(piece, shape_->longer);
  const size_t skipped = std::min(length, micro_batch * shape_->piece);
  return {start + skipped, std::min(shape_->piece, length - skipped)};
}

uint8_t* Execution::address(const Location& location, size_t offset) {
  switch (location.buffer) {
    case Buffer::Input: return static_cast<uint8_t*>(const_cast<void*>(binding_.input)) + offset * shape_->element;
    case Buffer::Output: return static_cast<uint8_t*>(binding_.output) + offset * shape_->element;
    default:
      return arena_.get() + static_cast<size_t>(location.piece) * shape_->scratch_stride + offset * shape_->element;
  }
}

// The local operand of a reduction or copy, scaled where the request scales its input.
const void* Execution::operand(const Location& location, const Range& range, size_t lane) {
  const void* source = address(location, range.offset);
  if (binding_.scalar == nullptr || location.buffer != Buffer::Input) return source;
  uint8_t* scaled = bounce(lane);
  shape_->scale(scaled, source, range.length, binding_.scalar);
  return scaled;
}

// The message that waits at `port`, if it belongs to this request and fits; another one fails the execution.
const Message* Execution::arrived(RecvPort& port) {
  const Message* message = port.peek();
  if (message == nullptr) return nullptr;
  if (message->signature_hash == binding_.tag.hash && message->bytes <= shape_->longest_message) [[likely]]
    return message;
  mismatch(port);
  return nullptr;
}

const void* Execution::contents(RecvPort& port, const Message& message, size_t lane) {
  if (message.data != nullptr) return message.data;
  uint8_t* fetched = bounce(lane);
  if (Status status = port.fetch(fetched, 0, message.bytes); !status.ok()) {
    status_ = status;
    return nullptr;
  }
  return fetched;
}

// Room for one piece; lanes are apart, so that a fold may need several at once. Kept between requests.
uint8_t* Execution::bounce(size_t lane) {
  if (bounces_.size() <= lane) bounces_.resize(lane + 1);
  std::vector<uint8_t>& room = bounces_[lane];
  if (room.size() < shape_->piece * shape_->element) room.resize(shape_->piece * shape_->element);
  return room.data();
}

void Execution::mismatch(RecvPort& port) { status_ = theseus::mismatch(binding_.tag.signature, port.peer_signature()); }

}  // namespace theseus
