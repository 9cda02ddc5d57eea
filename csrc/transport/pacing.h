// Virtual NICs of a known speed (THESEUS_NIC_RATE): one token bucket per rail and direction, shared by all processes
// of a host.
//
// The buckets lie in a memfd. One process of the host owns an abstract Unix socket, named after user and host, and
// hands the descriptor to the others, which notice its death by the connection they keep; one of them then takes the
// name over with the page they all have. Nothing is left in a file system.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "transport/token_bucket.h"

namespace theseus {

enum class Direction { Egress, Ingress, Both };

struct PacingPage {
  static constexpr int kRails = 64;
  static constexpr uint64_t kMagic = 0x3143415053454854;  // "THESPAC1"

  uint64_t magic;
  std::atomic<uint64_t> changes;  // by set_rate(), so that the newer of two pages can be told
  struct alignas(64) Nic {
    TokenBucket egress;
    TokenBucket ingress;
  };
  Nic nics[kRails];
};

class Pacing {
 public:
  // This host's, or null where THESEUS_NIC_RATE is not set. Kept for the life of the process.
  static Result<Pacing*> for_this_host();

  // `host`: host_identity(). The first process to come sets all rails to `bytes_per_second`; for the others the page's
  // rates count. 0: unlimited. SystemError where the page cannot be had.
  static Result<std::unique_ptr<Pacing>> open(const std::string& host, uint64_t bytes_per_second);
  ~Pacing();

  TokenBucket& egress(int rail) { return nic(rail).egress; }
  TokenBucket& ingress(int rail) { return nic(rail).ingress; }
  // One rail, for every process of the host, at once. 0: unlimited.
  void set_rate(int rail, uint64_t bytes_per_second, Direction direction = Direction::Both);
  // The same from outside: for a running host of this user, by its host_identity() or THESEUS_HOST. RemoteError where
  // no process of such a host is there, InvalidArgument where it has no such rail.
  static Status set_rate_of(const std::string& host, int rail, uint64_t bytes_per_second,
                            Direction direction = Direction::Both);
  // True in the process that hands out the page.
  bool is_owner() const;

 private:
  struct Share;
  explicit Pacing(std::shared_ptr<Share> share);
  PacingPage::Nic& nic(int rail) {
    return page_->load(std::memory_order_acquire)->nics[static_cast<unsigned>(rail) % PacingPage::kRails];
  }

  std::shared_ptr<Share> share_;
  std::atomic<PacingPage*>* page_;  // in *share_
};

}  // namespace theseus
