#include "executor/shared_execution.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "device/copy.h"
#include "transport/doorbell.h"
#include "transport/shared_memory.h"

namespace theseus {
namespace {

// Below this, what the exchange costs is no longer small beside the request.
constexpr size_t kSmallestBytes = 256 << 10;
constexpr int kMostRanks = 16;
// What one pass works on: stays in the first-level caches between its fold and its copies.
constexpr size_t kPassBytes = 16 << 10;

}  // namespace

SharedExecution::SharedExecution(Segment& segment, int rank, int ranks, std::vector<bool> same_process)
    : segment_(segment),
      rank_(rank),
      ranks_(ranks),
      same_process_(std::move(same_process)),
      buffers_(static_cast<size_t>(ranks)) {}

bool SharedExecution::worth_trying(Collective collective, size_t bytes, int ranks) {
  switch (collective) {
    case Collective::AllReduce:
    case Collective::AllGather:
    case Collective::ReduceScatter:
    case Collective::AllToAll:
    case Collective::Broadcast: return ranks > 1 && ranks <= kMostRanks && bytes >= kSmallestBytes;
    default: return false;
  }
}

bool SharedExecution::due(const SignatureTag& tag) {
  record_ = &records_[tag.base % kRecords];
  if (record_->base != tag.base) *record_ = {tag.base, 1, 0};
  if (record_->left == 0) return true;
  --record_->left;
  return false;
}

void SharedExecution::start(const Call& call) {
  call_ = call;
  ++exchange_;
  stage_ = Stage::Posted;
  served_ = false;
  status_ = {};
  post();
}

template <class Reached>
bool SharedExecution::all(Reached&& reached) const {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!reached(board(rank))) return false;
  }
  return true;
}

void SharedExecution::post() {
  BufferBoard& own = board(rank_);
  const Binding& binding = call_.binding;
  const SharedMemory::Span send = SharedMemory::find(binding.input, call_.input_bytes);
  const SharedMemory::Span recv = SharedMemory::find(binding.output, call_.output_bytes);
  own.send_allocation = send.id;
  own.send_offset = send.offset;
  own.recv_allocation = recv.id;
  own.recv_offset = recv.offset;
  own.send_address = reinterpret_cast<uint64_t>(binding.input);
  own.recv_address = reinterpret_cast<uint64_t>(binding.output);
  uint32_t& recorded = recorded_[exchange_ & 1];
  if (recorded != binding.tag.base) {
    own.announced = binding.tag.signature;
    recorded = binding.tag.base;
  }
  own.signature = binding.tag.hash;
  own.posted.store(exchange_, std::memory_order_release);
  ring_all();
}

// Whether a rank runs the same request; status_ says what else.
bool SharedExecution::agrees(const BufferBoard& other) {
  if (other.signature == call_.binding.tag.hash) return true;
  RequestSignature announced = other.announced;
  announced.request = (other.signature - base_hash(announced)) * kRequestFactorInverse;
  status_ = mismatch(call_.binding.tag.signature, announced);
  return false;
}

Advance SharedExecution::advance() {
  if (stage_ == Stage::Posted) {
    if (!all([this](const BufferBoard& b) { return b.posted.load(std::memory_order_acquire) == exchange_; })) {
      return Advance::Blocked;
    }
    if (!all([this](const BufferBoard& b) { return agrees(b); })) return Advance::Failed;
    if (!all_shared()) return give_up();
    board(rank_).mapped.store(2 * exchange_ + (map_all() ? 1 : 0), std::memory_order_release);
    ring_all();
    stage_ = Stage::Mapped;
  }
  if (stage_ == Stage::Mapped) {
    if (!all([this](const BufferBoard& b) { return b.mapped.load(std::memory_order_acquire) >> 1 == exchange_; })) {
      return Advance::Blocked;
    }
    if (!all([](const BufferBoard& b) { return (b.mapped.load(std::memory_order_relaxed) & 1) != 0; })) {
      return give_up();
    }
    record_->skips = 1;
    work();
    served_ = true;
    board(rank_).finished.store(exchange_, std::memory_order_release);
    ring_all();
    stage_ = Stage::Working;
  }
  if (!all([this](const BufferBoard& b) { return b.finished.load(std::memory_order_acquire) == exchange_; })) {
    return Advance::Blocked;
  }
  return Advance::Done;
}

// All ranks come here for the same request, so all skip the same ones after it.
Advance SharedExecution::give_up() {
  record_->left = record_->skips;
  record_->skips = std::min(2 * record_->skips, kMostSkips);
  return Advance::Done;
}

// Judged from what was posted alone, so that all ranks judge alike: ranks of one process reach each other's private
// memory too, but a rank of another process would not.
bool SharedExecution::all_shared() const {
  if (call_.binding.scalar != nullptr) return false;  // factors differ by rank; the plan applies them
  if (std::find(same_process_.begin(), same_process_.end(), false) == same_process_.end()) return true;
  const bool reads_input = call_.collective != Collective::Broadcast;
  const bool writes_output = call_.collective == Collective::AllReduce || call_.collective == Collective::Broadcast;
  for (int rank = 0; rank < ranks_; ++rank) {
    const BufferBoard& b = board(rank);
    if ((reads_input || rank == call_.root) && b.send_allocation == 0) return false;
    if (writes_output && b.recv_allocation == 0) return false;
  }
  return true;
}

bool SharedExecution::map_all() {
  const auto reach = [](uint64_t allocation, uint64_t offset, size_t bytes) {
    return allocation == 0 ? nullptr
                           : static_cast<uint8_t*>(SharedMemory::map_peer_writable(allocation, offset, bytes));
  };
  const bool reads_input = call_.collective != Collective::Broadcast;
  const bool writes_output = call_.collective == Collective::AllReduce || call_.collective == Collective::Broadcast;
  for (int rank = 0; rank < ranks_; ++rank) {
    const BufferBoard& b = board(rank);
    Buffers& buffers = buffers_[rank];
    if (same_process_[rank]) {
      buffers = {reinterpret_cast<const uint8_t*>(b.send_address), reinterpret_cast<uint8_t*>(b.recv_address)};
      continue;
    }
    const size_t input = call_.collective == Collective::Broadcast ? call_.output_bytes : call_.input_bytes;
    buffers.input = reads_input || rank == call_.root ? reach(b.send_allocation, b.send_offset, input) : nullptr;
    buffers.output = writes_output ? reach(b.recv_allocation, b.recv_offset, call_.output_bytes) : nullptr;
    if ((reads_input || rank == call_.root) && buffers.input == nullptr) return false;
    if (writes_output && buffers.output == nullptr) return false;
  }
  return true;
}

void SharedExecution::work() {
  switch (call_.collective) {
    case Collective::AllReduce: return all_reduce();
    case Collective::ReduceScatter: {
      uint8_t* output = static_cast<uint8_t*>(call_.binding.output);
      const size_t count = call_.binding.count;
      return reduce_block(static_cast<size_t>(rank_) * count, count, &output, 1, 0);
    }
    case Collective::Broadcast: return broadcast();
    default: return gather();
  }
}

void SharedExecution::all_reduce() {
  // Shards end at cache lines, so that no line is written by two ranks.
  const size_t element = size_of(call_.binding.type);
  const size_t line = 64 / element;
  const size_t count = call_.binding.count;
  const size_t shard = (count / static_cast<size_t>(ranks_) + line - 1) / line * line;
  const size_t begin = std::min(count, shard * static_cast<size_t>(rank_));
  const size_t end = rank_ + 1 == ranks_ ? count : std::min(count, begin + shard);
  std::array<uint8_t*, kMostRanks> outputs;
  outputs[0] = static_cast<uint8_t*>(call_.binding.output);
  size_t others = 1;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank != rank_) outputs[others++] = buffers_[rank].output;
  }
  reduce_block(begin, end - begin, outputs.data(), others, begin);
}

// Folds elements [begin, begin + count) of all inputs into outputs[0], and copies that to the other outputs, pass by
// pass.
void SharedExecution::reduce_block(size_t begin, size_t count, uint8_t* const* outputs, size_t outputs_count,
                                   size_t output_begin) {
  const size_t element = size_of(call_.binding.type);
  const FoldKernel fold = fold_kernel(call_.binding.type, call_.binding.op);
  const size_t pass = std::max<size_t>(1, kPassBytes / element);
  std::array<const void*, kMostRanks> inputs;
  for (size_t done = 0; done < count; done += pass) {
    const size_t length = std::min(pass, count - done);
    for (int rank = 0; rank < ranks_; ++rank) {
      const uint8_t* input = rank == rank_ ? static_cast<const uint8_t*>(call_.binding.input) : buffers_[rank].input;
      inputs[static_cast<size_t>(rank)] = input + (begin + done) * element;
    }
    uint8_t* first = outputs[0] + (output_begin + done) * element;
    fold(first, inputs.data(), ranks_, length);
    for (size_t other = 1; other < outputs_count; ++other) {
      copy_bytes(outputs[other] + (output_begin + done) * element, first, length * element);
    }
  }
}

// AllGather and AllToAll: block r of the output comes from rank r. The own neighbour first, so that not all ranks read
// the same memory at once.
void SharedExecution::gather() {
  const size_t block = call_.binding.count * size_of(call_.binding.type);
  uint8_t* output = static_cast<uint8_t*>(call_.binding.output);
  for (int distance = 0; distance < ranks_; ++distance) {
    const int from = (rank_ + distance) % ranks_;
    const uint8_t* input = from == rank_ ? static_cast<const uint8_t*>(call_.binding.input) : buffers_[from].input;
    if (call_.collective == Collective::AllToAll) input += static_cast<size_t>(rank_) * block;
    uint8_t* target = output + static_cast<size_t>(from) * block;
    if (target != input) copy_bytes(target, input, block);
  }
}

// Everybody reads its own copy, and the root, which has nothing to read, writes an equal part of the work: the last
// 1/ranks of each other rank's buffer.
void SharedExecution::broadcast() {
  const size_t bytes = call_.output_bytes;
  const size_t tail = bytes / static_cast<size_t>(ranks_) / 64 * 64;
  if (rank_ != call_.root) {
    copy_bytes(call_.binding.output, buffers_[call_.root].input, bytes - tail);
    return;
  }
  const auto* input = static_cast<const uint8_t*>(call_.binding.input);
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank != rank_) copy_bytes(buffers_[rank].output + bytes - tail, input + bytes - tail, tail);
  }
  if (call_.binding.output != input) copy_bytes(call_.binding.output, input, bytes);
}

void SharedExecution::ring_all() {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank != rank_) ring(segment_.rank_page(rank));
  }
}

}  // namespace theseus
