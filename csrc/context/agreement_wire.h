// What ranks say to each other in an agreement, as bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "base/result.h"
#include "context/agreement.h"

namespace theseus {

struct AgreementNote {
  enum class Kind : uint8_t {
    Start,      // somebody has begun; begin as well
    Offers,     // to the parent: the meet of what the sender and all below it hold
    Candidate,  // to the children: the meet of all
    Votes,      // to the parent: the meet of what the sender and all below it say of the candidate
    Verdict,    // to the children: the meet of all
  };
  Kind kind = Kind::Start;
  uint64_t agreement = 0;
  uint64_t history = 0;  // digest of all agreements before
  Offer offer;           // Offers, Candidate
  Confirmation vote;     // Votes, Verdict
};

std::string encode(const AgreementNote& note);
// InvalidArgument: no note, or values that no rank of `ranks` may send.
Result<AgreementNote> decode_note(std::string_view bytes, int ranks);

}  // namespace theseus
