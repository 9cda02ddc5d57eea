#include "context/agreement_wire.h"

#include <utility>
#include <vector>

#include "net/wire.h"

namespace theseus {
namespace {

constexpr uint32_t kMostWords = kMostSchedules / 64;

// Without the zero words at the front: long jobs have removed the schedules with low ids.
void write(WireWriter& out, const ScheduleSet& set) {
  const std::vector<uint64_t>& words = set.words();
  uint32_t first = 0;
  while (first < words.size() && words[first] == 0) ++first;
  out.number(first).number(static_cast<uint32_t>(words.size()) - first);
  for (size_t i = first; i < words.size(); ++i) out.number(words[i]);
}

bool read(WireReader& in, ScheduleSet& set) {
  const auto first = in.number<uint32_t>();
  const auto count = in.number<uint32_t>();
  if (!in.ok() || first > kMostWords || count > kMostWords - first) return false;
  std::vector<uint64_t> words(first);
  for (uint32_t i = 0; i < count && in.ok(); ++i) words.push_back(in.number<uint64_t>());
  const bool is_trimmed = count == 0 ? first == 0 : words[first] != 0 && words.back() != 0;
  set = ScheduleSet::from_words(std::move(words));
  return in.ok() && is_trimmed;
}

void write(WireWriter& out, const Offer& offer) {
  out.number(offer.log_id).number(offer.position).number(offer.next_k).number(offer.time_us);
  out.number(static_cast<uint8_t>(offer.one_log)).number(offer.lowest_rank);
  write(out, offer.loaded);
}

bool read(WireReader& in, Offer& offer, int ranks) {
  offer.log_id = in.number<uint64_t>();
  offer.position = in.number<uint64_t>();
  offer.next_k = in.number<uint32_t>();
  offer.time_us = in.number<uint64_t>();
  const auto one_log = in.number<uint8_t>();
  offer.one_log = one_log == 1;
  offer.lowest_rank = in.number<int32_t>();
  return read(in, offer.loaded) && one_log <= 1 && offer.next_k >= 1 && offer.next_k <= kLargestK &&
         offer.lowest_rank >= 0 && offer.lowest_rank < ranks;
}

void write(WireWriter& out, const Confirmation& vote) {
  out.number(vote.lowest_digest).number(vote.highest_digest);
  out.number(static_cast<uint8_t>(vote.acceptable)).number(vote.held_back_by);
}

bool read(WireReader& in, Confirmation& vote, int ranks) {
  vote.lowest_digest = in.number<uint64_t>();
  vote.highest_digest = in.number<uint64_t>();
  const auto acceptable = in.number<uint8_t>();
  vote.acceptable = acceptable == 1;
  vote.held_back_by = in.number<int32_t>();
  return in.ok() && acceptable <= 1 && vote.lowest_digest <= vote.highest_digest && vote.held_back_by < ranks &&
         vote.held_back_by >= -1 && vote.acceptable == (vote.held_back_by == -1);
}

bool carries_offer(AgreementNote::Kind kind) {
  return kind == AgreementNote::Kind::Offers || kind == AgreementNote::Kind::Candidate;
}

}  // namespace

std::string encode(const AgreementNote& note) {
  WireWriter out;
  out.number(static_cast<uint8_t>(note.kind)).number(note.agreement).number(note.history);
  if (carries_offer(note.kind)) {
    write(out, note.offer);
  } else if (note.kind != AgreementNote::Kind::Start) {
    write(out, note.vote);
  }
  return out.take();
}

Result<AgreementNote> decode_note(std::string_view bytes, int ranks) {
  WireReader in(bytes);
  AgreementNote note;
  const auto kind = in.number<uint8_t>();
  note.kind = static_cast<AgreementNote::Kind>(kind);
  note.agreement = in.number<uint64_t>();
  note.history = in.number<uint64_t>();
  bool fits = in.ok() && kind <= static_cast<uint8_t>(AgreementNote::Kind::Verdict);
  if (fits && carries_offer(note.kind)) {
    fits = read(in, note.offer, ranks);
  } else if (fits && note.kind != AgreementNote::Kind::Start) {
    fits = read(in, note.vote, ranks);
  }
  if (!fits || !in.at_end()) return Status::argument("a damaged message of an agreement");
  return note;
}

}  // namespace theseus
