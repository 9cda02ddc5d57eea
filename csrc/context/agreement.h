// The agreement of one communicator, as one rank sees it: a state machine without clock, thread or I/O.
//
// Agreement n belongs to the boundary B_n, a request id: B_0 = 1, B_(n+1) = B_n + K_n, where agreement n gives K_n. It
// starts when this rank gets to request B_n - lag_n (lag_n = K_(n-1) / 2; 0 for n = 0), or when a peer's first message
// for it comes in, whatever comes first; it is installed exactly before request B_n, never on arrival and never
// skipped. Round 1 reduces offers; where that changed anything, a confirm round follows. Agreement n + 1 starts only
// after n is decided.
//
// Everything travels along a tree (context/agreement_tree.h), so that few messages cross hosts. Along each edge of it
// go, per agreement, at most: a note each way that somebody has begun, offers up and the candidate down, and where
// something changed votes up and the verdict down.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "context/agreement_tree.h"
#include "context/log.h"

namespace theseus {

inline constexpr uint32_t kLargestK = 1000;
// Decisions that wait for their boundaries. A rank whose requests are this far behind its peers' contributes no more
// until it has caught up by one, so that they do not pile up without bound.
inline constexpr size_t kMostUndone = 1024;

// What one rank holds, and the meet of what several hold.
struct Offer {
  uint64_t log_id = 0;  // 0: no log
  uint64_t position = 0;
  ScheduleSet loaded;
  uint32_t next_k = 100;
  uint64_t time_us = 0;
  bool one_log = true;       // false: ranks whose logs differ met; log_id, position and loaded are empty then
  int32_t lowest_rank = -1;  // the lowest rank among those at `position`, or 0 without one log; the machine fills it in
  bool operator==(const Offer&) const = default;
};
// The paper's reducer, compact: min of positions, intersection of what is loaded, min of K, min of time. Commutative,
// associative, idempotent.
Offer meet(const Offer& a, const Offer& b);

// Second round: do all ranks decode the candidate alike, and can all run it?
struct Confirmation {
  uint64_t lowest_digest = 0;
  uint64_t highest_digest = 0;
  bool acceptable = true;     // not older than what is installed; everything loaded and pinned
  int32_t held_back_by = -1;  // the lowest rank that does not accept; -1: none. The machine fills it in
  bool operator==(const Confirmation&) const = default;
};
Confirmation meet(const Confirmation& a, const Confirmation& b);

struct Decision {
  uint64_t agreement = 0;  // n
  uint64_t boundary = 0;   // B_n
  bool changed = false;    // the candidate that decode() kept is to be installed
  Offer candidate;         // its time_us is the agreed time, changed or not, and never goes back
  uint64_t digest = 0;     // of the snapshot, where changed
  // Why a candidate was not installed: a rank that holds it back (-1: none), and whether ranks decoded it differently.
  int32_t held_back_by = -1;
  bool digests_differ = false;
  uint64_t next_boundary = 0;
};

// What the machine asks its rank for, and tells it. Called from whatever thread drives the machine, in this order for
// each agreement: offer, decode where anything differs, decided.
class Holdings {
 public:
  virtual ~Holdings() = default;
  // What this rank holds now. What is offered stays loaded (pinned) until decided() is called.
  virtual Offer offer() = 0;
  // Decodes the candidate into a Snapshot, keeps it, and says its digest.
  virtual Confirmation decode(const Offer& candidate) = 0;
  // The agreement is over. Where it changed something, what decode() kept last is to be installed when take() gives
  // this decision, so it stays and is pinned, maybe with others before it; else it may go.
  virtual void decided(const Decision& decision) { static_cast<void>(decision); }
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
  bool one_k = true;                 // false: each rank follows its own proposal
  bool one_time = true;              // false: each rank goes by its own clock
  bool never_backwards = true;       // false: an older position is installed as well
};

class Agreement {
 public:
  // `host_of_rank`: as Topology. `holdings` outlives the machine. K_0 is 1: the second agreement comes soon.
  Agreement(int rank, const std::vector<int>& host_of_rank, Holdings& holdings, const AgreementRules& rules = {});
  // The same for one of `ranks` ranks whose place in the tree is known.
  Agreement(int rank, int ranks, AgreementTree tree, Holdings& holdings, const AgreementRules& rules = {});
  ~Agreement();
  Agreement(Agreement&&) noexcept;

  // This rank gets to request `request` (before it is selected); ids in order, none left out unless reach() need not
  // be called: next_event() says the first id for which it must.
  std::vector<AgreementMessage> reach(uint64_t request);
  // Before this id nothing is to be reached, awaited or taken. Moves when something is.
  uint64_t next_event() const;
  // A message of a peer. Messages of one peer come in the order they were given out here, each once. InvalidArgument:
  // it is none of ours (the sender is broken, or lies, or decided otherwise than we); the machine is of no use then.
  Result<std::vector<AgreementMessage>> receive(int from, std::string_view bytes);

  // Whether request `request` must wait for an agreement that is to be installed before it.
  bool must_wait(uint64_t request) const;
  // The decision to be installed before `request`, once; null where there is none.
  std::unique_ptr<Decision> take(uint64_t request);
  uint64_t agreements() const;  // decided so far
  size_t undone() const;        // of them not taken yet
  // An agreement has begun here and is not decided: peers may still need this rank for it.
  bool under_way() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace theseus
