#include "device/copy.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace theseus {
namespace {

using Copy = void (*)(void*, const void*, size_t);
const Copy kCopies[] = {[](void* dst, const void* src, size_t bytes) { copy_bytes(dst, src, bytes); }, copy_streaming};

std::vector<char> numbered(size_t bytes) {
  std::vector<char> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i * 37 + i / 251 + 1);
  return data;
}

// Any size and any two alignments: every byte arrives and no other byte changes.
TEST(CopyTest, EverySizeAndAlignment) {
  std::vector<size_t> sizes = {511, 512, 513, 575, 576, 577, 640, 1000, 4096, 4099, 70001};
  for (size_t size = 0; size <= 140; ++size) sizes.push_back(size);
  const std::vector<char> source = numbered(70001 + 64);
  for (Copy copy : kCopies) {
    for (size_t size : sizes) {
      for (size_t to : {0, 1, 7, 13, 32, 63}) {
        for (size_t from : {0, 1, 8, 29}) {
          std::vector<char> target(size + 128, 'x');
          copy(target.data() + to, source.data() + from, size);
          ASSERT_TRUE(std::equal(target.begin() + to, target.begin() + to + size, source.begin() + from)) << size;
          ASSERT_EQ(std::count(target.begin(), target.begin() + to, 'x'), static_cast<long>(to));
          ASSERT_EQ(std::count(target.begin() + to + size, target.end(), 'x'), static_cast<long>(128 - to));
        }
      }
    }
  }
}

// Nothing before or after the source is read: both its ends lie against pages without access.
TEST(CopyTest, StaysInsideItsPages) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  char* const base =
      static_cast<char*>(mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(base, MAP_FAILED);
  ASSERT_EQ(mprotect(base, page, PROT_NONE), 0);
  ASSERT_EQ(mprotect(base + 2 * page, page, PROT_NONE), 0);
  std::vector<char> other(page);
  for (Copy copy : kCopies) {
    for (size_t size = 0; size <= 1200; ++size) {
      for (char* at : {base + page, base + 2 * page - size}) {
        copy(other.data(), at, size);
        copy(at, other.data(), size);
      }
    }
  }
  munmap(base, 3 * page);
}

// A buffer copied onto itself stays as it is.
TEST(CopyTest, OntoItself) {
  for (size_t size : {3, 8, 40, 64, 3000}) {
    const std::vector<char> expected = numbered(size);
    std::vector<char> data = expected;
    copy_streaming(data.data(), data.data(), size);
    EXPECT_EQ(data, expected);
  }
}

}  // namespace
}  // namespace theseus
