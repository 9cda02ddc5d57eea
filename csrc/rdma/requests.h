// Copies of work requests, that outlive the call which posted them.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <vector>

namespace theseus::rdma {

class SendCopy {
 public:
  explicit SendCopy(const ibv_send_wr& request) : request_(request) {
    pieces_.assign(request.sg_list, request.sg_list + request.num_sge);
    request_.next = nullptr;
    if ((request.send_flags & IBV_SEND_INLINE) == 0) return;
    // Inline data is the caller's only until the call returns.
    for (const ibv_sge& piece : pieces_) {
      const auto* const start = reinterpret_cast<const char*>(piece.addr);
      inline_.insert(inline_.end(), start, start + piece.length);
    }
    pieces_.assign(1, {0, static_cast<uint32_t>(inline_.size()), 0});
    request_.num_sge = 1;
  }

  ibv_send_wr& request() {
    if (!inline_.empty()) pieces_[0].addr = reinterpret_cast<uint64_t>(inline_.data());
    request_.sg_list = pieces_.data();
    return request_;
  }

 private:
  ibv_send_wr request_;
  std::vector<ibv_sge> pieces_;
  std::vector<char> inline_;
};

class ReceiveCopy {
 public:
  explicit ReceiveCopy(const ibv_recv_wr& request)
      : id_(request.wr_id), pieces_(request.sg_list, request.sg_list + request.num_sge) {}

  ibv_recv_wr request() { return {id_, nullptr, pieces_.data(), static_cast<int>(pieces_.size())}; }

 private:
  uint64_t id_;
  std::vector<ibv_sge> pieces_;
};

}  // namespace theseus::rdma
