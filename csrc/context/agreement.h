// The agreement of one communicator, as one rank sees it: a state machine without clock, thread or I/O.
//
// Agreement n belongs to the boundary B_n, a request id: B_0 = 1, B_(n+1) = B_n + K_n, where agreement n gives K_n. It
// starts when this rank gets to request B_n - lag_n (lag_n = K_(n-1) / 2; 0 for n = 0), or when a peer's first message
// for it comes in, whatever comes first; it is installed exactly before request B_n, never on arrival and never
// skipped. Round 1 reduces offers (context/offer.h); where that changed anything, a confirm round follows.
//
// Both rounds run up and down a binomial tree of ranks ordered by host, so that few messages cross hosts, and a rank
// handles at most 2 log2(ranks) messages a round.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "context/log.h"

namespace theseus {

inline constexpr uint32_t kLargestK = 1000;

// What one rank holds, and the meet of what several hold.
struct Offer {
  uint64_t log_id = 0;
  uint64_t position = 0;
  ScheduleSet loaded;
  uint32_t next_k = 100;
  uint64_t time_us = 0;
  bool one_log = true;  // false: ranks whose logs differ met; they install built-in schedules only
  bool operator==(const Offer&) const = default;
};
// The paper's reducer, compact: min of positions, intersection of what is loaded, min of K, min of time.
Offer meet(const Offer& a, const Offer& b);

// Second round: do all ranks decode the candidate alike, and can all run it?
struct Confirmation {
  uint64_t lowest_digest = 0;
  uint64_t highest_digest = 0;
  bool acceptable = true;     // not older than what is installed; everything loaded and pinned
  int32_t held_back_by = -1;  // the lowest rank that does not accept; -1: none
  bool operator==(const Confirmation&) const = default;
};
Confirmation meet(const Confirmation& a, const Confirmation& b);

// What the machine asks its rank for. Called from whatever thread drives the machine.
class Holdings {
 public:
  virtual ~Holdings() = default;
  // What this rank holds now. What is offered stays loaded (pinned) until the agreement is over.
  virtual Offer offer() = 0;
  // Decodes the candidate into a Snapshot, keeps it for install(), and says its digest.
  virtual Confirmation decode(const Offer& candidate) = 0;
};

struct Decision {
  uint64_t agreement = 0;  // n
  uint64_t boundary = 0;   // B_n
  bool changed = false;    // the candidate that decode() kept is to be installed
  Offer candidate;
  int32_t held_back_by = -1;  // a rank that kept a candidate from being installed
  uint64_t next_boundary = 0;
};

struct AgreementMessage {
  int to = 0;
  std::string bytes;
};

// Rules that the simulation switches off, one at a time, to show that each is needed.
struct AgreementRules {
  bool confirm = true;               // the second round
  bool install_at_boundary = true;   // false: on arrival
  bool contribute_for_peers = true;  // false: only when the own rank gets there
  bool wait_for_all = true;          // false: a rank gives up alone
};

class Agreement {
 public:
  // `host_of_rank`: as Topology. `holdings` outlives the machine. K_0 is 1: the second agreement comes soon.
  Agreement(int rank, const std::vector<int>& host_of_rank, Holdings& holdings, const AgreementRules& rules = {});
  ~Agreement();

  // This rank gets to request `request` (before it is selected); ids in order, none left out unless reach() need not
  // be called: next_event() says the first id for which it must.
  std::vector<AgreementMessage> reach(uint64_t request);
  uint64_t next_event() const;
  // A message of a peer. InvalidArgument: it is none of ours (the sender is broken, or lies).
  Result<std::vector<AgreementMessage>> receive(int from, std::string_view bytes);

  // Whether request `request` must wait for an agreement that is to be installed before it.
  bool must_wait(uint64_t request) const;
  // The decision to be installed before `request`, once; null where there is none.
  std::unique_ptr<Decision> take(uint64_t request);
  uint64_t agreements() const;  // decided so far

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace theseus
