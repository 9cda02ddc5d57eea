// One request over buffers that every rank of a host can reach as its own memory: no slots, no second copy.
//
// All ranks post where their buffers lie, and go this way only if all buffers of all ranks are shared (mem_alloc, or
// one process) and mapped everywhere; whether they are is settled by what all have posted, so all decide alike. Then
// each rank does its part of the work on everybody's memory, and leaves when all have done theirs.
//
//   AllReduce        rank r folds shard r of all inputs, in rank order, and stores it in all outputs
//   ReduceScatter    rank r folds block r of all inputs
//   AllGather, AllToAll, Broadcast   rank r reads what it is due from its owners (of a Broadcast the root writes a
//   part)
//
// In place and out of place alike: a place that one rank writes is read by no other.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "executor/execution.h"
#include "transport/segment.h"

namespace theseus {

class SharedExecution {
 public:
  // `local_rank` of `ranks`, all of them on this host. `same_process`: by rank, whose pointers are valid here.
  SharedExecution(Segment& segment, int rank, int ranks, std::vector<bool> same_process);

  // Whether requests of this kind are tried this way at all. Equal on all ranks.
  // `bytes`: of the whole data space.
  static bool worth_trying(Collective collective, size_t bytes, int ranks);

  // Whether to try this request, which is worth trying. Where buffers have turned out to be private, requests of the
  // same signature skip more and more tries, up to kMostSkips. Every rank asks once a request; since all learn the same
  // from each try, all get the same answers.
  bool due(const SignatureTag& tag);

  struct Call {
    Binding binding;
    Collective collective;
    int root = 0;
    size_t input_bytes = 0;  // of this rank
    size_t output_bytes = 0;
  };
  void start(const Call& call);
  Advance advance();
  // After Done: false where the buffers are private, so that the request is still to be run by its plan.
  bool served() const { return served_; }
  const Status& status() const { return status_; }

 private:
  enum class Stage { Posted, Mapped, Working };
  // Of requests of one signature.
  struct Record {
    uint32_t base = 0;
    uint32_t skips = 0;  // after the next try in vain
    uint32_t left = 0;   // until the next try
  };
  static constexpr size_t kRecords = 64;
  static constexpr uint32_t kMostSkips = 32;
  struct Buffers {
    const uint8_t* input;
    uint8_t* output;
  };

  BufferBoard& board(int rank) const { return segment_.rank_page(rank).boards[exchange_ & 1]; }
  template <class Reached>
  bool all(Reached&& reached) const;
  void post();
  bool agrees(const BufferBoard& other);
  Advance give_up();
  bool all_shared() const;
  bool map_all();
  void work();
  void all_reduce();
  void reduce_block(size_t begin, size_t count, uint8_t* const* outputs, size_t outputs_count, size_t output_begin);
  void gather();
  void broadcast();
  void ring_all();

  Segment& segment_;
  int rank_;
  int ranks_;
  std::vector<bool> same_process_;
  std::vector<Buffers> buffers_;
  Call call_;
  uint32_t exchange_ = 0;
  uint32_t recorded_[2] = {};  // by board: base of the signature that it announces
  Stage stage_ = Stage::Posted;
  bool served_ = false;
  std::array<Record, kRecords> records_;
  Record* record_ = nullptr;  // of the request at hand
  Status status_;
};

}  // namespace theseus
