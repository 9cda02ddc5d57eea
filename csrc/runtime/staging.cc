#include "runtime/staging.h"

#include <algorithm>
#include <cstring>

namespace theseus {

Staging::Layout Staging::layout() const {
  const auto inputs = static_cast<size_t>(blocks_.input_blocks);
  const auto outputs = static_cast<size_t>(blocks_.output_blocks);
  if (!in_place_ || inputs == 0 || outputs == 0) return {0, inputs, inputs + outputs};
  // In place, the shorter of both lies in the longer at this rank's block.
  const auto own = static_cast<size_t>(rank_);
  return {outputs > inputs ? own : 0, inputs > outputs ? own : 0, std::max(inputs, outputs)};
}

Binding Staging::enter(const Binding& user, size_t padded_count, std::vector<uint8_t>& memory) const {
  const size_t element = size_of(user.type);
  const size_t block = user.count * element;
  const size_t padded = padded_count * element;
  const Layout layout = this->layout();
  if (memory.size() < layout.total * padded) memory.resize(layout.total * padded);
  uint8_t* const input = memory.data() + layout.input * padded;
  for (size_t b = 0; b < static_cast<size_t>(blocks_.input_blocks); ++b) {
    std::memcpy(input + b * padded, static_cast<const uint8_t*>(user.input) + b * block, block);
    std::memset(input + b * padded + block, 0, padded - block);
  }
  return place(user, padded_count, memory.data());
}

Binding Staging::place(const Binding& user, size_t padded_count, uint8_t* memory) const {
  const size_t padded = padded_count * size_of(user.type);
  const Layout layout = this->layout();
  Binding staged = user;
  staged.input = memory + layout.input * padded;
  staged.output = memory + layout.output * padded;
  staged.count = padded_count;
  return staged;
}

void Staging::leave(const Binding& user, size_t padded_count, const std::vector<uint8_t>& memory) const {
  const size_t element = size_of(user.type);
  const size_t block = user.count * element;
  const size_t padded = padded_count * element;
  const uint8_t* const output = memory.data() + layout().output * padded;
  for (size_t b = 0; b < static_cast<size_t>(blocks_.output_blocks); ++b) {
    std::memcpy(static_cast<uint8_t*>(user.output) + b * block, output + b * padded, block);
  }
}

}  // namespace theseus
