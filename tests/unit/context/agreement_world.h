// The agreement of a few ranks, driven by hand: machines, what their ranks hold, and the messages between them.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "context/agreement.h"
#include "context/agreement_wire.h"
#include "unit/context/random.h"

namespace theseus {

inline std::string text_of(const ScheduleSet& set) {
  std::string text;
  for (uint32_t id = 0; id < set.words().size() * 64; ++id) {
    if (set.test(id)) text += (text.empty() ? "" : ",") + std::to_string(id);
  }
  return "{" + text + "}";
}

inline std::string text_of(const Offer& offer) {
  if (!offer.one_log) return "logs differ, k " + std::to_string(offer.next_k);
  return "log " + std::to_string(offer.log_id) + " position " + std::to_string(offer.position) + " loaded " +
         text_of(offer.loaded) + " k " + std::to_string(offer.next_k) + " time " + std::to_string(offer.time_us) +
         " lowest rank " + std::to_string(offer.lowest_rank);
}

inline std::string text_of(const Confirmation& vote) {
  std::string text = vote.lowest_digest == vote.highest_digest ? "alike" : "not alike";
  return vote.acceptable ? text : text + ", held back by rank " + std::to_string(vote.held_back_by);
}

inline std::string text_of(const AgreementNote& note) {
  const std::string number = " " + std::to_string(note.agreement);
  switch (note.kind) {
    case AgreementNote::Kind::Start: return "start" + number;
    case AgreementNote::Kind::Offers: return "offers" + number + ": " + text_of(note.offer);
    case AgreementNote::Kind::Candidate: return "candidate" + number + ": " + text_of(note.offer);
    case AgreementNote::Kind::Votes: return "votes" + number + ": " + text_of(note.vote);
    case AgreementNote::Kind::Verdict: return "verdict" + number + ": " + text_of(note.vote);
  }
  return "?";
}

// What a rank holds: a log read so far, and what is loaded of it.
class TestHoldings : public Holdings {
 public:
  explicit TestHoldings(uint64_t log_id) : log(log_id) {}

  Offer offer() override {
    Offer offer;
    offer.log_id = log.id();
    offer.position = log.position();
    offer.loaded = loaded;
    offer.next_k = next_k;
    offer.time_us = time_us;
    return offer;
  }
  Confirmation decode(const Offer& candidate) override {
    const Result<Snapshot> snapshot = log.snapshot(candidate.position, candidate.loaded);
    if (!snapshot.ok() || !runs) return {0, 0, false, -1};
    kept = *snapshot;
    return {snapshot->digest, snapshot->digest, true, -1};
  }

  // One more record; the n-th is the same on all ranks.
  void read_one() { ASSERT_TRUE(log.apply(exogenous(name_of("a", log.position()))).ok()); }

  ContextLog log;
  ScheduleSet loaded;
  uint32_t next_k = 100;
  uint64_t time_us = 0;
  bool runs = true;  // whether it can run what comes
  std::optional<Snapshot> kept;
};

class AgreementWorld {
 public:
  struct Rank {
    TestHoldings holdings;
    std::unique_ptr<Agreement> machine;
    explicit Rank(uint64_t log_id) : holdings(log_id) {}
  };

  explicit AgreementWorld(std::vector<int> hosts, uint64_t log_id = 9, const AgreementRules& rules = {})
      : hosts_(std::move(hosts)) {
    for (size_t rank = 0; rank < hosts_.size(); ++rank) {
      ranks_.push_back(std::make_unique<Rank>(log_id));
      ranks_.back()->machine =
          std::make_unique<Agreement>(static_cast<int>(rank), hosts_, ranks_.back()->holdings, rules);
    }
  }

  int size() const { return static_cast<int>(hosts_.size()); }
  Rank& operator[](int rank) { return *ranks_.at(static_cast<size_t>(rank)); }
  Agreement& machine(int rank) { return *(*this)[rank].machine; }

  void send(int from, std::vector<AgreementMessage> messages) {
    for (AgreementMessage& message : messages) {
      ways_[{from, message.to}].push_back(std::move(message.bytes));
      ++sent_;
    }
  }
  void reach(int rank, uint64_t request) { send(rank, machine(rank).reach(request)); }
  // The oldest message of a way, delivered; its text, or the refusal. Null: there is none.
  std::optional<std::string> deliver(int from, int to) {
    std::deque<std::string>& way = ways_[{from, to}];
    if (way.empty()) return std::nullopt;
    const std::string bytes = std::move(way.front());
    way.pop_front();
    return inject(from, to, bytes);
  }
  std::string inject(int from, int to, const std::string& bytes) {
    const Result<AgreementNote> note = decode_note(bytes, size());
    Result<std::vector<AgreementMessage>> answers = machine(to).receive(from, bytes);
    const std::string text = note.ok() ? text_of(*note) : "damaged";
    if (!answers.ok()) return text + " REFUSED: " + answers.status().message();
    send(to, std::move(*answers));
    return text;
  }
  // Delivers until nothing is left, ways in order of their ends. One line a message.
  std::string run() {
    std::string lines;
    for (bool moved = true; moved;) {
      moved = false;
      for (int from = 0; from < size(); ++from) {
        for (int to = 0; to < size(); ++to) {
          while (const std::optional<std::string> text = deliver(from, to)) {
            lines += std::to_string(from) + " -> " + std::to_string(to) + " " + *text + "\n";
            moved = true;
          }
        }
      }
    }
    return lines;
  }
  uint64_t sent() const { return sent_; }

 private:
  std::vector<int> hosts_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::map<std::pair<int, int>, std::deque<std::string>> ways_;
  uint64_t sent_ = 0;
};

}  // namespace theseus
