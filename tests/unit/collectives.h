// What collectives must give, worked out element by element: the reference that C++ tests hold the library to.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"
#include "schedule/plan.h"

namespace theseus::testing {

struct CollectiveCase {
  Collective collective = Collective::AllReduce;
  int ranks = 1;
  size_t count = 1;
  RedOp op = RedOp::Sum;  // Sum, Prod, Max, Min
  int root = 0;
  bool in_place = false;

  std::string name() const {
    return std::string(name_of(collective)) + " of " + std::to_string(count) + ", " + std::to_string(ranks) +
           " ranks, " + name_of(op) + ", root " + std::to_string(root) + (in_place ? ", in place" : "");
  }
};

template <class T>
constexpr DataType type_of();
template <>
constexpr DataType type_of<uint8_t>() {
  return DataType::Uint8;
}
template <>
constexpr DataType type_of<int32_t>() {
  return DataType::Int32;
}
template <>
constexpr DataType type_of<int64_t>() {
  return DataType::Int64;
}
template <>
constexpr DataType type_of<float>() {
  return DataType::Float32;
}
template <>
constexpr DataType type_of<double>() {
  return DataType::Float64;
}

// Element `index` of what `rank` puts in: small, so that floating sums and products are exact, and unlike its
// neighbours.
inline int64_t put_in(int rank, size_t index) {
  return static_cast<int64_t>((index * 5 + static_cast<size_t>(rank) * 3) % 4) + 1;
}

inline int64_t reduced(const CollectiveCase& test, size_t index) {
  int64_t value = put_in(0, index);
  for (int rank = 1; rank < test.ranks; ++rank) {
    const int64_t next = put_in(rank, index);
    switch (test.op) {
      case RedOp::Prod: value *= next; break;
      case RedOp::Max: value = std::max(value, next); break;
      case RedOp::Min: value = std::min(value, next); break;
      default: value += next; break;
    }
  }
  return value;
}

// Element `index` of what `rank` gets out.
inline int64_t expected(const CollectiveCase& test, int rank, size_t index) {
  const size_t own = static_cast<size_t>(rank) * test.count;
  const int block = static_cast<int>(index / test.count);
  switch (test.collective) {
    case Collective::AllReduce:
    case Collective::Reduce: return reduced(test, index);
    case Collective::ReduceScatter: return reduced(test, own + index);
    case Collective::Broadcast: return put_in(test.root, index);
    case Collective::Scatter: return put_in(test.root, own + index);
    case Collective::AllToAll: return put_in(block, own + index % test.count);
    default: return put_in(block, index % test.count);  // AllGather, Gather
  }
}

// One rank's buffers: filled, in place where the case asks for it, and checked afterwards.
template <class T>
class RankBuffers {
 public:
  RankBuffers(const CollectiveCase& test, int rank) : test_(test), rank_(rank) {
    const BufferShape shape = buffer_shape(test.collective, test.ranks, test.root, rank);
    input_ = static_cast<size_t>(shape.input_blocks) * test.count;
    output_ = static_cast<size_t>(shape.output_blocks) * test.count;
    const size_t own = static_cast<size_t>(rank) * test.count;
    const bool gathers = test.collective == Collective::AllGather || test.collective == Collective::Gather;
    const bool scatters = test.collective == Collective::ReduceScatter || test.collective == Collective::Scatter;
    const bool shared = test.in_place && input_ > 0 && output_ > 0;
    memory_.resize(shared ? std::max(input_, output_) : input_ + output_);
    send_ = memory_.data() + (shared && gathers ? own : 0);
    recv_ = memory_.data() + (shared ? (scatters ? own : 0) : input_);
    for (size_t i = 0; i < output_; ++i) recv_[i] = T{99};
    for (size_t i = 0; i < input_; ++i) send_[i] = static_cast<T>(put_in(rank, i));
  }

  const T* send() const { return input_ > 0 ? send_ : nullptr; }
  T* recv() { return output_ > 0 ? recv_ : nullptr; }
  // Both buffers as one piece of memory, for tests that keep it elsewhere; offsets in bytes.
  T* memory() { return memory_.data(); }
  size_t bytes() const { return memory_.size() * sizeof(T); }
  size_t send_offset() const { return static_cast<size_t>(send_ - memory_.data()) * sizeof(T); }
  size_t recv_offset() const { return static_cast<size_t>(recv_ - memory_.data()) * sizeof(T); }

  // "" where all came out right, else the first difference.
  std::string difference() const {
    for (size_t i = 0; i < output_; ++i) {
      const T right = static_cast<T>(expected(test_, rank_, i));
      if (recv_[i] == right) continue;
      return test_.name() + ": rank " + std::to_string(rank_) + " has " + std::to_string(recv_[i]) + " instead of " +
             std::to_string(right) + " at " + std::to_string(i);
    }
    return "";
  }

 private:
  CollectiveCase test_;
  int rank_;
  size_t input_ = 0;
  size_t output_ = 0;
  std::vector<T> memory_;
  T* send_ = nullptr;
  T* recv_ = nullptr;
};

}  // namespace theseus::testing
