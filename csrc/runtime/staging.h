// Room for a request whose count does not divide as its plan needs (VerifyOptions::any_count): it runs on copies of the
// buffers, in which every block is a little longer.
#pragma once

#include <cstdint>
#include <vector>

#include "executor/execution.h"
#include "schedule/plan.h"

namespace theseus {

class Staging {
 public:
  // `in_place`: how the plan is to be run, whatever the caller's buffers are.
  Staging(const BufferShape& blocks, int rank, bool in_place) : blocks_(blocks), rank_(rank), in_place_(in_place) {}

  // Copies the input. Returns what to run: `user`, but for buffers and count, which is `padded_count`. Valid until the
  // next enter().
  Binding enter(const Binding& user, size_t padded_count);
  // Copies the output to the caller's buffer. After the request is done.
  void leave();

 private:
  BufferShape blocks_;
  int rank_;
  bool in_place_;
  Binding user_;
  size_t padded_count_ = 0;
  std::vector<uint8_t> memory_;
  uint8_t* output_ = nullptr;
};

}  // namespace theseus
