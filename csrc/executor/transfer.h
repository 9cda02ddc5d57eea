// Point-to-point transfers on the host: one send or one receive, resumable like an Execution.
//
// A transfer is cut into pieces of at most one slot, dealt out to the given ports in turn (one port a rail), the
// first piece always to the first port; both ends deal alike. A transfer of no bytes is one empty message, so that it
// takes its turn in the order between two ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "executor/execution.h"
#include "transport/port.h"

namespace theseus {

class SendTransfer {
 public:
  SendTransfer(std::vector<SendPort*> ports, const void* data, size_t bytes, size_t piece_bytes,
               const SignatureTag& tag);
  Advance advance();

 private:
  bool posted_all() const { return begun_ && offset_ == bytes_; }

  std::vector<SendPort*> ports_;
  const uint8_t* data_;
  size_t bytes_;
  size_t piece_bytes_;
  SignatureTag tag_;
  size_t offset_ = 0;
  size_t turn_ = 0;
  bool begun_ = false;
  uint64_t ticket_ = 0;  // of a transfer by reference
};

class RecvTransfer {
 public:
  RecvTransfer(std::vector<RecvPort*> ports, void* data, size_t bytes, size_t piece_bytes, const SignatureTag& tag);
  Advance advance();
  const Status& status() const { return status_; }

 private:
  bool take(RecvPort& port, const Message& message);

  std::vector<RecvPort*> ports_;
  uint8_t* data_;
  size_t bytes_;
  size_t piece_bytes_;
  SignatureTag tag_;
  size_t offset_ = 0;
  size_t turn_ = 0;
  bool begun_ = false;
  Status status_;
};

}  // namespace theseus
