#include "runtime/staging.h"

#include <algorithm>
#include <cstring>

namespace theseus {

Binding Staging::enter(const Binding& user, size_t padded_count) {
  user_ = user;
  padded_count_ = padded_count;
  const size_t element = size_of(user.type);
  const size_t block = user.count * element;
  const size_t padded = padded_count * element;
  const auto inputs = static_cast<size_t>(blocks_.input_blocks);
  const auto outputs = static_cast<size_t>(blocks_.output_blocks);
  // In place, the shorter of both lies in the longer at this rank's block.
  const size_t own = static_cast<size_t>(rank_) * padded;
  const bool one = in_place_ && inputs > 0 && outputs > 0;
  const size_t input_at = one && outputs > inputs ? own : 0;
  const size_t output_at = !one ? inputs * padded : inputs > outputs ? own : 0;
  memory_.resize(one ? std::max(inputs, outputs) * padded : (inputs + outputs) * padded);
  uint8_t* const input = memory_.data() + input_at;
  output_ = memory_.data() + output_at;
  for (size_t b = 0; b < inputs; ++b) {
    std::memcpy(input + b * padded, static_cast<const uint8_t*>(user.input) + b * block, block);
    std::memset(input + b * padded + block, 0, padded - block);
  }
  Binding staged = user;
  staged.input = input;
  staged.output = output_;
  staged.count = padded_count;
  return staged;
}

void Staging::leave() {
  const size_t element = size_of(user_.type);
  const size_t block = user_.count * element;
  const size_t padded = padded_count_ * element;
  for (size_t b = 0; b < static_cast<size_t>(blocks_.output_blocks); ++b) {
    std::memcpy(static_cast<uint8_t*>(user_.output) + b * block, output_ + b * padded, block);
  }
}

}  // namespace theseus
