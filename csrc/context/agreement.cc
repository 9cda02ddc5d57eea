#include "context/agreement.h"

#include <algorithm>
#include <cassert>
#include <deque>
#include <utility>

#include "context/agreement_wire.h"
#include "context/digest.h"

namespace theseus {

Offer meet(const Offer& a, const Offer& b) {
  Offer both;
  both.next_k = std::min(a.next_k, b.next_k);
  both.time_us = std::min(a.time_us, b.time_us);
  both.one_log = a.one_log && b.one_log && a.log_id == b.log_id;
  if (!both.one_log) {
    both.lowest_rank = 0;
    return both;
  }
  both.log_id = a.log_id;
  both.position = std::min(a.position, b.position);
  both.loaded = a.loaded;
  both.loaded.intersect(b.loaded);
  if (a.position == b.position) {
    both.lowest_rank = std::min(a.lowest_rank, b.lowest_rank);
  } else {
    both.lowest_rank = a.position < b.position ? a.lowest_rank : b.lowest_rank;
  }
  return both;
}

Confirmation meet(const Confirmation& a, const Confirmation& b) {
  Confirmation both;
  both.lowest_digest = std::min(a.lowest_digest, b.lowest_digest);
  both.highest_digest = std::max(a.highest_digest, b.highest_digest);
  both.acceptable = a.acceptable && b.acceptable;
  // As unsigned numbers -1, nobody, is the highest.
  both.held_back_by =
      static_cast<int32_t>(std::min(static_cast<uint32_t>(a.held_back_by), static_cast<uint32_t>(b.held_back_by)));
  return both;
}

namespace {

using Kind = AgreementNote::Kind;

// Where this rank stands in the current agreement.
enum class Phase {
  Idle,       // not begun here
  Gathering,  // waits for the offers of its children
  Offered,    // waits for the candidate
  Counting,   // waits for the votes of its children
  Voted,      // waits for the verdict
};

struct Child {
  int rank = 0;
  bool has_begun = false;  // we know it has
  bool has_offered = false;
  bool has_voted = false;
};

// What all ranks have installed, equal by induction: it follows from the decisions alone.
struct Installed {
  uint64_t log_id = 0;
  uint64_t position = 0;
  ScheduleSet loaded;
};

Status refusal(int from, const char* what) {
  return Status::argument("rank " + std::to_string(from) + " sent a message of an agreement that " + what);
}

}  // namespace

struct Agreement::Impl {
  Impl(int own, int of, AgreementTree tree, Holdings& held, const AgreementRules& switches)
      : rank(own), ranks(of), parent(tree.parent), holdings(held), rules(switches) {
    for (const int child : tree.children) children.push_back({.rank = child});
  }

  const int rank;
  const int ranks;
  const int parent;
  Holdings& holdings;
  const AgreementRules rules;

  // The current agreement.
  uint64_t number = 0;
  uint64_t boundary = 1;
  uint64_t lag = 0;
  Phase phase = Phase::Idle;
  std::vector<Child> children;
  bool parent_has_begun = false;
  Offer own;                // what this rank offered
  Offer offers;             // the meet of this rank's and of all below it
  bool has_offers = false;  // a child's came before our own
  Offer candidate;
  Confirmation votes;

  // Across agreements.
  uint64_t reached = 0;
  bool begin_early = false;  // the parent's note overtook its last message of the current agreement
  Installed installed;
  uint64_t time_us = 0;
  uint64_t history = 0;
  std::deque<Decision> undone;
  std::vector<AgreementMessage> out;

  std::vector<AgreementMessage> sent() { return std::exchange(out, {}); }
  Child* child(int from) {
    const auto found =
        std::find_if(children.begin(), children.end(), [from](const Child& c) { return c.rank == from; });
    return found == children.end() ? nullptr : &*found;
  }
  uint64_t starts_at() const { return boundary - lag; }

  void send(int to, Kind kind) {
    AgreementNote note{kind, number, history, {}, {}};
    if (kind == Kind::Offers) note.offer = offers;
    if (kind == Kind::Candidate) note.offer = candidate;
    if (kind == Kind::Votes || kind == Kind::Verdict) note.vote = votes;
    out.push_back({to, encode(note)});
  }
  void send_down(Kind kind) {
    for (const Child& one : children) send(one.rank, kind);
  }

  void begin_if_due();
  void begin();
  void offer_up();
  void judge();
  void vote_up();
  void decide(bool changed, int32_t held_back_by, bool digests_differ);
  Status on_note(int from, const AgreementNote& note);
  Status on_start(int from);
  Status on_offers(int from, const Offer& offer);
  Status on_candidate(int from, const Offer& offer);
  Status on_votes(int from, const Confirmation& vote);
  Status on_verdict(int from, const Confirmation& vote);
};

// Begins where this rank has got there, or a peer has.
void Agreement::Impl::begin_if_due() {
  if (phase != Phase::Idle || undone.size() >= kMostUndone) return;
  const bool a_peer_has =
      parent_has_begun || std::any_of(children.begin(), children.end(), [](const Child& one) { return one.has_begun; });
  if (reached >= starts_at() || (a_peer_has && rules.contribute_for_peers)) begin();
}

void Agreement::Impl::begin() {
  phase = Phase::Gathering;
  own = holdings.offer();
  own.next_k = std::clamp(own.next_k, 1u, kLargestK);
  own.one_log = true;
  own.lowest_rank = rank;
  offers = has_offers ? meet(offers, own) : own;
  // A peer whose program is elsewhere has to hear of it: down to all below, and up to the root, which tells the rest.
  // Offers say so as well, so a leaf needs no other note.
  if (parent >= 0 && !parent_has_begun && !children.empty()) send(parent, Kind::Start);
  for (const Child& one : children) {
    if (!one.has_begun) send(one.rank, Kind::Start);
  }
  offer_up();
}

// Once all below have offered.
void Agreement::Impl::offer_up() {
  if (!std::all_of(children.begin(), children.end(), [](const Child& one) { return one.has_offered; })) return;
  if (parent >= 0) {
    phase = Phase::Offered;
    send(parent, Kind::Offers);
    return;
  }
  candidate = offers;
  judge();
}

// The candidate is known. Whether it changes anything is decided by what all ranks know alike.
void Agreement::Impl::judge() {
  send_down(Kind::Candidate);
  const bool same_log = candidate.one_log && (installed.log_id == 0 || candidate.log_id == installed.log_id);
  const bool differs = candidate.log_id != installed.log_id || candidate.position != installed.position ||
                       candidate.loaded != installed.loaded;
  if (!same_log || !differs) return decide(false, -1, false);
  if (rules.never_backwards && candidate.position < installed.position) {
    return decide(false, candidate.lowest_rank, false);
  }
  votes = holdings.decode(candidate);
  votes.held_back_by = votes.acceptable ? -1 : rank;
  if (!rules.confirm) return decide(true, -1, false);
  phase = Phase::Counting;
  vote_up();
}

// Once all below have voted.
void Agreement::Impl::vote_up() {
  if (!std::all_of(children.begin(), children.end(), [](const Child& one) { return one.has_voted; })) return;
  if (parent >= 0) {
    phase = Phase::Voted;
    send(parent, Kind::Votes);
    return;
  }
  send_down(Kind::Verdict);
  const bool alike = votes.lowest_digest == votes.highest_digest;
  decide(votes.acceptable && alike, votes.held_back_by, votes.acceptable && !alike);
}

void Agreement::Impl::decide(bool changed, int32_t held_back_by, bool digests_differ) {
  time_us = std::max(time_us, rules.one_time ? candidate.time_us : own.time_us);
  candidate.time_us = time_us;
  const uint32_t k = number == 0 ? 1 : rules.one_k ? candidate.next_k : own.next_k;
  if (changed) {
    assert(!rules.never_backwards || candidate.position >= installed.position);
    installed = {candidate.log_id, candidate.position, candidate.loaded};
  }
  Decision decision{number,       boundary,       changed,     candidate, changed ? votes.lowest_digest : 0,
                    held_back_by, digests_differ, boundary + k};
  Digest digest;
  digest.add(history).add(boundary).add(uint64_t{k}).add(uint64_t{changed});
  if (changed) {
    digest.add(candidate.log_id).add(candidate.position).add(decision.digest);
    for (const uint64_t word : candidate.loaded.words()) digest.add(word);
  }
  history = digest.value();
  undone.push_back(std::move(decision));
  holdings.decided(undone.back());

  ++number;
  boundary += k;
  lag = k / 2;
  phase = Phase::Idle;
  has_offers = false;
  for (Child& one : children) one = {.rank = one.rank};
  parent_has_begun = std::exchange(begin_early, false);
  begin_if_due();
}

Status Agreement::Impl::on_note(int from, const AgreementNote& note) {
  if (note.kind == Kind::Start && note.agreement + 1 == number) return {};  // its offers overtook it
  if (note.kind == Kind::Start && note.agreement == number + 1 && from == parent) {
    begin_early = true;
    return {};
  }
  if (note.agreement != number) return refusal(from, "is not the current one; ranks have lost each other");
  if (note.history != history) return refusal(from, "follows other decisions than ours; ranks have lost each other");
  switch (note.kind) {
    case Kind::Start: return on_start(from);
    case Kind::Offers: return on_offers(from, note.offer);
    case Kind::Candidate: return on_candidate(from, note.offer);
    case Kind::Votes: return on_votes(from, note.vote);
    case Kind::Verdict: return on_verdict(from, note.vote);
  }
  return {};
}

Status Agreement::Impl::on_start(int from) {
  Child* below = child(from);
  if (below != nullptr) {
    below->has_begun = true;
  } else if (from == parent) {
    parent_has_begun = true;
  } else {
    return refusal(from, "comes from no neighbour in the tree");
  }
  begin_if_due();
  return {};
}

Status Agreement::Impl::on_offers(int from, const Offer& offer) {
  Child* below = child(from);
  if (below == nullptr || below->has_offered) return refusal(from, "does not belong to its offers");
  below->has_begun = below->has_offered = true;
  offers = has_offers || phase == Phase::Gathering ? meet(offers, offer) : offer;
  has_offers = true;
  if (phase == Phase::Gathering) {
    offer_up();
  } else {
    begin_if_due();
  }
  return {};
}

Status Agreement::Impl::on_candidate(int from, const Offer& offer) {
  if (from != parent || phase != Phase::Offered) return refusal(from, "brings a candidate that is not due");
  if (meet(offer, offers) != offer) return refusal(from, "brings a candidate above what was offered");
  candidate = offer;
  judge();
  return {};
}

Status Agreement::Impl::on_votes(int from, const Confirmation& vote) {
  Child* below = child(from);
  if (below == nullptr || phase != Phase::Counting || below->has_voted) {
    return refusal(from, "brings votes that are not due");
  }
  below->has_voted = true;
  votes = meet(votes, vote);
  vote_up();
  return {};
}

Status Agreement::Impl::on_verdict(int from, const Confirmation& vote) {
  if (from != parent || phase != Phase::Voted) return refusal(from, "brings a verdict that is not due");
  if (meet(vote, votes) != vote) return refusal(from, "brings a verdict that its votes do not allow");
  votes = vote;
  send_down(Kind::Verdict);
  const bool alike = votes.lowest_digest == votes.highest_digest;
  decide(votes.acceptable && alike, votes.held_back_by, votes.acceptable && !alike);
  return {};
}

Agreement::Agreement(int rank, const std::vector<int>& host_of_rank, Holdings& holdings, const AgreementRules& rules)
    : Agreement(rank, static_cast<int>(host_of_rank.size()),
                std::move(agreement_trees(host_of_rank)[static_cast<size_t>(rank)]), holdings, rules) {}

Agreement::Agreement(int rank, int ranks, AgreementTree tree, Holdings& holdings, const AgreementRules& rules)
    : impl_(std::make_unique<Impl>(rank, ranks, std::move(tree), holdings, rules)) {}

Agreement::~Agreement() = default;
Agreement::Agreement(Agreement&&) noexcept = default;

std::vector<AgreementMessage> Agreement::reach(uint64_t request) {
  assert(request >= impl_->reached);
  impl_->reached = std::max(impl_->reached, request);
  impl_->begin_if_due();
  return impl_->sent();
}

bool Agreement::under_way() const { return impl_->phase != Phase::Idle; }

uint64_t Agreement::next_event() const {
  const uint64_t next = impl_->phase == Phase::Idle ? impl_->starts_at() : impl_->boundary;
  return impl_->undone.empty() ? next : std::min(next, impl_->undone.front().boundary);
}

Result<std::vector<AgreementMessage>> Agreement::receive(int from, std::string_view bytes) {
  Result<AgreementNote> note = decode_note(bytes, impl_->ranks);
  if (!note) return refusal(from, "is damaged");
  THESEUS_TRY(impl_->on_note(from, *note));
  return impl_->sent();
}

bool Agreement::must_wait(uint64_t request) const { return impl_->rules.wait_for_all && impl_->boundary <= request; }

std::unique_ptr<Decision> Agreement::take(uint64_t request) {
  std::deque<Decision>& undone = impl_->undone;
  if (!impl_->rules.wait_for_all) {
    while (!undone.empty() && undone.front().boundary < request) undone.pop_front();
  }
  if (undone.empty()) return nullptr;
  if (impl_->rules.install_at_boundary && undone.front().boundary > request) return nullptr;
  auto decision = std::make_unique<Decision>(std::move(undone.front()));
  undone.pop_front();
  return decision;
}

uint64_t Agreement::agreements() const { return impl_->number; }
size_t Agreement::undone() const { return impl_->undone.size(); }

}  // namespace theseus
