// Requests on padded copies: what goes in, where it lies, and what comes back.
#include "runtime/staging.h"

#include <gtest/gtest.h>

#include <numeric>

namespace theseus {
namespace {

constexpr size_t kCount = 5;
constexpr size_t kPadded = 8;

struct Buffers {
  std::vector<int32_t> input, output;
  Binding binding;

  explicit Buffers(const BufferShape& blocks)
      : input(kCount * static_cast<size_t>(blocks.input_blocks)),
        output(kCount * static_cast<size_t>(blocks.output_blocks), -1) {
    std::iota(input.begin(), input.end(), 1);
    binding.input = input.data();
    binding.output = output.data();
    binding.count = kCount;
    binding.type = DataType::Int32;
  }
};

// Every block of the input begins at a multiple of the padded count, and zeros fill it up.
void expect_input(const Buffers& user, const Binding& staged) {
  const auto* data = static_cast<const int32_t*>(staged.input);
  for (size_t block = 0; block < user.input.size() / kCount; ++block) {
    for (size_t i = 0; i < kPadded; ++i) {
      EXPECT_EQ(data[block * kPadded + i], i < kCount ? user.input[block * kCount + i] : 0) << block << " " << i;
    }
  }
}

// Only the caller's elements of each output block come back.
void expect_output(Buffers& user, const Binding& staged, const Staging& staging, const std::vector<uint8_t>& memory) {
  auto* data = static_cast<int32_t*>(staged.output);
  const size_t blocks = user.output.size() / kCount;
  for (size_t i = 0; i < blocks * kPadded; ++i) data[i] = static_cast<int32_t>(100 + i);
  staging.leave(user.binding, kPadded, memory);
  for (size_t block = 0; block < blocks; ++block) {
    for (size_t i = 0; i < kCount; ++i) {
      EXPECT_EQ(user.output[block * kCount + i], static_cast<int32_t>(100 + block * kPadded + i));
    }
  }
}

TEST(Staging, KeepsBuffersApartWhereThePlanWantsThat) {
  for (const BufferShape& blocks : {BufferShape{1, 1}, BufferShape{3, 1}, BufferShape{1, 3}, BufferShape{3, 3}}) {
    Buffers user(blocks);
    Staging staging(blocks, 1, false);
    std::vector<uint8_t> memory;
    const Binding staged = staging.enter(user.binding, kPadded, memory);
    EXPECT_EQ(staged.count, kPadded);
    expect_input(user, staged);
    const auto* input = static_cast<const int32_t*>(staged.input);
    const auto* output = static_cast<const int32_t*>(staged.output);
    EXPECT_GE(output - input, static_cast<std::ptrdiff_t>(kPadded * static_cast<size_t>(blocks.input_blocks)));
    expect_output(user, staged, staging, memory);
  }
}

// In place as NCCL defines it: the one block of this rank lies where the other buffer has it.
TEST(Staging, PutsOneIntoTheOtherForPlansThatWorkInPlace) {
  struct Shape {
    BufferShape blocks;
    std::ptrdiff_t output_behind_input;
  };
  const auto padded = static_cast<std::ptrdiff_t>(kPadded);
  for (const Shape& shape : {Shape{{1, 1}, 0}, Shape{{1, 3}, -2 * padded}, Shape{{3, 1}, 2 * padded}}) {
    Buffers user(shape.blocks);
    Staging staging(shape.blocks, 2, true);
    std::vector<uint8_t> memory;
    const Binding staged = staging.enter(user.binding, kPadded, memory);
    expect_input(user, staged);
    EXPECT_EQ(static_cast<const int32_t*>(staged.output) - static_cast<const int32_t*>(staged.input),
              shape.output_behind_input);
    expect_output(user, staged, staging, memory);
  }
}

// A rank without input or output has nothing to copy on that side.
TEST(Staging, ServesRanksWithOneBuffer) {
  for (const BufferShape& blocks : {BufferShape{0, 1}, BufferShape{1, 0}, BufferShape{0, 3}}) {
    for (const bool in_place : {false, true}) {
      Buffers user(blocks);
      Staging staging(blocks, 0, in_place);
      std::vector<uint8_t> memory;
      const Binding staged = staging.enter(user.binding, kPadded, memory);
      expect_input(user, staged);
      expect_output(user, staged, staging, memory);
    }
  }
}

}  // namespace
}  // namespace theseus
