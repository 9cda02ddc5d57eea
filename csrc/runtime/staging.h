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

  // Copies the input. Returns what to run: `user`, but for buffers and count, which is `padded_count`. `memory` stays
  // as it is until leave(), which gets the same arguments.
  Binding enter(const Binding& user, size_t padded_count, std::vector<uint8_t>& memory) const;
  // Copies the output to the caller's buffer. After the request is done.
  void leave(const Binding& user, size_t padded_count, const std::vector<uint8_t>& memory) const;

  // The same without the copying: how much memory it takes, and what to run where that is at `memory`.
  size_t bytes(const Binding& user, size_t padded_count) const {
    return layout().total * padded_count * size_of(user.type);
  }
  Binding place(const Binding& user, size_t padded_count, uint8_t* memory) const;
  const BufferShape& blocks() const { return blocks_; }

 private:
  // Offsets of both buffers in blocks of the padded count, and how many blocks there are.
  struct Layout {
    size_t input;
    size_t output;
    size_t total;
  };
  Layout layout() const;

  BufferShape blocks_;
  int rank_;
  bool in_place_;
};

}  // namespace theseus
