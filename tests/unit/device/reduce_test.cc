#include "device/reduce.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "device/kernel_table.h"
#include "reference.h"

namespace theseus {
namespace {

using reference::CodeSource;

const RedOp kOps[] = {RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min};

// Every test of this fixture runs for every element type and for every instruction set of this processor.
class ReduceTest : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  void SetUp() override {
    if (std::get<1>(GetParam()) > static_cast<int>(best_instruction_set())) {
      GTEST_SKIP() << "this processor lacks the instruction set";
    }
    table_ = &kernel_table(static_cast<InstructionSet>(std::get<1>(GetParam())));
  }

  DataType type() const { return static_cast<DataType>(std::get<0>(GetParam())); }
  size_t size() const { return size_of(type()); }
  ReduceKernel reduce(RedOp op) const { return table_->reduce[std::get<0>(GetParam())][static_cast<int>(op)]; }
  FoldKernel fold(RedOp op) const { return table_->fold[std::get<0>(GetParam())][static_cast<int>(op)]; }
  ScaleKernel scale() const { return table_->scale[std::get<0>(GetParam())]; }

  uint64_t at(const std::vector<char>& array, size_t i) const {
    return reference::read(type(), array.data() + i * size());
  }

  void expect_reduced(RedOp op, const std::vector<char>& out, const std::vector<char>& left,
                      const std::vector<char>& right) const {
    for (size_t i = 0; i < out.size() / size(); ++i) {
      ASSERT_EQ(at(out, i), reference::reduce(type(), op, at(left, i), at(right, i)))
          << name_of(op) << " of element " << i << ": " << std::hex << at(left, i) << ", " << at(right, i);
    }
  }

  const KernelTable* table_ = nullptr;
};

std::string case_name(const testing::TestParamInfo<std::tuple<int, int>>& info) {
  const char* const sets[] = {"baseline", "avx2", "avx512"};
  return std::string(name_of(static_cast<DataType>(std::get<0>(info.param)))) + "_" + sets[std::get<1>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(All, ReduceTest, testing::Combine(testing::Range(0, kDataTypes), testing::Range(0, 3)),
                         case_name);

// Every pair of 8-bit codes; every pair of special codes and many random ones of wider types.
TEST_P(ReduceTest, MatchesTheReference) {
  std::vector<char> left, right;
  const auto add = [&](uint64_t a, uint64_t b) {
    left.resize(left.size() + size());
    right.resize(right.size() + size());
    reference::write(type(), a, left.data() + left.size() - size());
    reference::write(type(), b, right.data() + right.size() - size());
  };
  if (size() == 1) {
    for (int a = 0; a < 256; ++a) {
      for (int b = 0; b < 256; ++b) add(a, b);
    }
  } else {
    const std::vector<uint64_t> codes = reference::special_codes(type());
    for (uint64_t a : codes) {
      for (uint64_t b : codes) add(a, b);
    }
    CodeSource source(type());
    for (int i = 0; i < 40001; ++i) add(source.next(), source.next());
  }
  for (RedOp op : kOps) {
    std::vector<char> out(left.size());
    reduce(op)(out.data(), left.data(), right.data(), left.size() / size());
    expect_reduced(op, out, left, right);
    if (HasFatalFailure()) return;
  }
}

// Every code of the narrow types, and many of the others, survives decoding and encoding: x * 1 is x, but for NaN,
// which becomes the canonical one, and fp8 infinity, which saturates.
TEST_P(ReduceTest, MultiplyingByOneKeepsEveryCode) {
  const size_t count = size_t{1} << (8 * std::min<size_t>(size(), 2));
  std::vector<char> all = CodeSource(type()).array(count), one(size()), out(count * size());
  for (size_t i = 0; i < count && size() <= 2; ++i) reference::write(type(), i, all.data() + i * size());
  reference::write(type(), is_floating(type()) ? reference::encode(type(), 1.0) : 1, one.data());
  scale()(out.data(), all.data(), count, one.data());
  for (size_t i = 0; i < count; ++i) {
    const double value = is_floating(type()) ? reference::decode(type(), at(all, i)) : 0;
    const uint64_t expected = std::isfinite(value) ? at(all, i) : reference::encode(type(), value);
    ASSERT_EQ(at(out, i), expected) << "code " << std::hex << at(all, i);
  }
}

// Any count and any address: the same bits as from aligned buffers, and nothing written outside.
TEST_P(ReduceTest, OddCountsAndUnalignedAddresses) {
  for (size_t count : {0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 255, 257, 300}) {
    CodeSource source(type(), static_cast<uint32_t>(count));
    const std::vector<char> left = source.array(count), right = source.array(count);
    const size_t bytes = count * size();
    for (size_t offset : {0, 1, 3, 13}) {
      std::vector<char> a(bytes + 64), b(bytes + 64), out(bytes + 64, 'x');
      std::copy(left.begin(), left.end(), a.begin() + offset);
      std::copy(right.begin(), right.end(), b.begin() + 2 * offset);
      for (RedOp op : kOps) {
        reduce(op)(out.data() + offset, a.data() + offset, b.data() + 2 * offset, count);
        expect_reduced(op, {out.begin() + offset, out.begin() + offset + bytes}, left, right);
        if (HasFatalFailure()) return;
        ASSERT_EQ(std::count(out.begin(), out.begin() + offset, 'x'), static_cast<long>(offset));
        ASSERT_EQ(std::count(out.begin() + offset + bytes, out.end(), 'x'), static_cast<long>(64 - offset));
      }
    }
  }
}

// The destination may be either operand, and any source of a fold or a scale.
TEST_P(ReduceTest, InPlace) {
  const size_t count = 333;
  CodeSource source(type(), 7);
  const std::vector<char> left = source.array(count), right = source.array(count);
  for (RedOp op : kOps) {
    std::vector<char> apart(left.size()), onto_left = left, onto_right = right;
    reduce(op)(apart.data(), left.data(), right.data(), count);
    reduce(op)(onto_left.data(), onto_left.data(), right.data(), count);
    reduce(op)(onto_right.data(), left.data(), onto_right.data(), count);
    EXPECT_EQ(onto_left, apart);
    EXPECT_EQ(onto_right, apart);
  }
  std::vector<char> apart(left.size()), onto = left;
  scale()(apart.data(), left.data(), count, right.data());
  scale()(onto.data(), onto.data(), count, right.data());
  EXPECT_EQ(onto, apart);
}

// A fold equals the chain of its steps in every bit, whichever source is the destination. One source is a copy.
TEST_P(ReduceTest, FoldEqualsChain) {
  for (size_t count : {1, 2, 7, 64, 100, 517}) {
    CodeSource source(type(), static_cast<uint32_t>(count));
    std::vector<std::vector<char>> arrays;
    for (int i = 0; i < 64; ++i) arrays.push_back(source.array(count));
    for (int sources : {1, 2, 3, 4, 5, 8, 9, 64}) {
      for (RedOp op : kOps) {
        std::vector<char> chain = arrays[0];
        for (int i = 1; i < sources; ++i) reduce(op)(chain.data(), chain.data(), arrays[i].data(), count);
        for (int onto : {-1, 0, sources / 2, sources - 1}) {
          std::vector<char> out = onto < 0 ? std::vector<char>(count * size()) : arrays[onto];
          std::vector<const void*> pointers;
          for (int i = 0; i < sources; ++i) pointers.push_back(i == onto ? out.data() : arrays[i].data());
          fold(op)(out.data(), pointers.data(), sources, count);
          ASSERT_EQ(out, chain) << name_of(op) << " of " << sources << " sources onto " << onto;
        }
      }
    }
  }
}

TEST_P(ReduceTest, ScaleIsOneMultiplication) {
  const size_t count = 1001;
  CodeSource source(type(), 5);
  const std::vector<char> in = source.array(count);
  for (int round = 0; round < 20; ++round) {
    const uint64_t scalar = source.next();
    std::vector<char> scalar_bytes(size() + 1), out(in.size());
    reference::write(type(), scalar, scalar_bytes.data() + 1);
    scale()(out.data(), in.data(), count, scalar_bytes.data() + 1);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(at(out, i), reference::reduce(type(), RedOp::Prod, at(in, i), scalar)) << std::hex << at(in, i);
    }
  }
}

// The bits of a result do not depend on operand order, NaN and signed zero included.
TEST_P(ReduceTest, OperandOrderDoesNotMatter) {
  const size_t count = 5000;
  CodeSource source(type(), 11);
  const std::vector<char> left = source.array(count), right = source.array(count);
  for (RedOp op : kOps) {
    std::vector<char> forward(left.size()), backward(left.size());
    reduce(op)(forward.data(), left.data(), right.data(), count);
    reduce(op)(backward.data(), right.data(), left.data(), count);
    EXPECT_EQ(forward, backward) << name_of(op);
  }
}

// Nothing outside the buffers is touched: both their ends lie against pages without access.
TEST_P(ReduceTest, StaysInsideItsPages) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto guarded = [&] {
    char* const base =
        static_cast<char*>(mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(base, MAP_FAILED);
    EXPECT_EQ(mprotect(base, page, PROT_NONE), 0);
    EXPECT_EQ(mprotect(base + 2 * page, page, PROT_NONE), 0);
    return base;
  };
  char* const bases[3] = {guarded(), guarded(), guarded()};
  const char scalar[8] = {};
  for (size_t count = 1; count <= std::min<size_t>(page / size(), 300); ++count) {
    const size_t bytes = count * size();
    for (size_t start : {page, 2 * page - bytes}) {
      char* const out = bases[0] + start;
      const void* const sources[3] = {bases[1] + start, bases[2] + start, bases[1] + start};
      for (RedOp op : kOps) {
        reduce(op)(out, sources[0], sources[1], count);
        fold(op)(out, sources, 3, count);
      }
      scale()(out, sources[0], count, scalar);
      divide_in_place(type(), out, count, 3);
    }
  }
  for (char* base : bases) munmap(base, 3 * page);
}

// The public look-up gives the best table's kernels, and none for the operations that callers resolve.
TEST(ReduceKernels, LookUp) {
  const KernelTable& best = kernel_table(best_instruction_set());
  for (int type = 0; type < kDataTypes; ++type) {
    for (int op = 0; op < kKernelOps; ++op) {
      EXPECT_EQ(reduce_kernel(static_cast<DataType>(type), static_cast<RedOp>(op)), best.reduce[type][op]);
      EXPECT_EQ(fold_kernel(static_cast<DataType>(type), static_cast<RedOp>(op)), best.fold[type][op]);
    }
    EXPECT_EQ(scale_kernel(static_cast<DataType>(type)), best.scale[type]);
    EXPECT_EQ(reduce_kernel(static_cast<DataType>(type), RedOp::Avg), nullptr);
    EXPECT_EQ(fold_kernel(static_cast<DataType>(type), RedOp::PreMulSum), nullptr);
  }
}

// Max and Min by hand, so that the reference is checked too.
TEST(ReduceKernels, NanAndSignedZeroByHand) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float left[] = {nan, 1.0f, -nan, 0.0f, -0.0f, -INFINITY};
  const float right[] = {2.0f, nan, nan, -0.0f, 0.0f, nan};
  const float max[] = {2.0f, 1.0f, nan, 0.0f, 0.0f, -INFINITY};
  const float min[] = {2.0f, 1.0f, nan, -0.0f, -0.0f, -INFINITY};
  float out[6];
  reduce_kernel(DataType::Float32, RedOp::Max)(out, left, right, 6);
  EXPECT_EQ(std::memcmp(out, max, sizeof(out)), 0);
  reduce_kernel(DataType::Float32, RedOp::Min)(out, left, right, 6);
  EXPECT_EQ(std::memcmp(out, min, sizeof(out)), 0);
}

// 448 is the largest e4m3 and 57344 the largest e5m2: sums stay there instead of becoming NaN or infinity.
TEST(ReduceKernels, Fp8SaturatesByHand) {
  uint8_t value = 0x7e;
  reduce_kernel(DataType::Float8e4m3, RedOp::Sum)(&value, &value, &value, 1);
  EXPECT_EQ(value, 0x7e);
  value = 0xfb;
  reduce_kernel(DataType::Float8e5m2, RedOp::Sum)(&value, &value, &value, 1);
  EXPECT_EQ(value, 0xfb);
  uint8_t infinity = 0x7c, one = 0x3c, larger = 0;
  reduce_kernel(DataType::Float8e5m2, RedOp::Max)(&larger, &infinity, &one, 1);
  EXPECT_EQ(larger, 0x7c);
}

}  // namespace
}  // namespace theseus
