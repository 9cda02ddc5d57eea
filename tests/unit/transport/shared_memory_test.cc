#include "transport/shared_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace theseus {
namespace {

uint8_t* allocate(size_t bytes) {
  Result<void*> memory = SharedMemory::allocate(bytes);
  EXPECT_TRUE(memory.ok()) << memory.status().message();
  return memory.ok() ? static_cast<uint8_t*>(*memory) : nullptr;
}

void release(void* memory) {
  const Status freed = SharedMemory::free(memory);
  EXPECT_TRUE(freed.ok()) << freed.message();
}

// Memory is page-aligned, zero and writable to its end; no bytes still give a pointer of one's own.
TEST(SharedMemory, AllocatesWholePages) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4096}, size_t{4097}, size_t{1} << 20}) {
    uint8_t* memory = allocate(bytes);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 4096, 0u);
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(memory[i], 0);
    std::memset(memory, 0xab, bytes);
    release(memory);
  }
}

// A size beyond any address space is refused in words.
TEST(SharedMemory, RefusesAbsurdSizes) {
  Result<void*> memory = SharedMemory::allocate(SIZE_MAX - 10);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), Code::InvalidArgument);
}

// Only what was allocated can be freed, and only once; null is nothing.
TEST(SharedMemory, FreesOnlyItsOwn) {
  uint8_t* memory = allocate(100);
  int local = 0;
  EXPECT_EQ(SharedMemory::free(&local).code(), Code::InvalidArgument);
  EXPECT_EQ(SharedMemory::free(memory + 1).code(), Code::InvalidArgument);
  EXPECT_TRUE(SharedMemory::free(memory).ok());
  EXPECT_EQ(SharedMemory::free(memory).code(), Code::InvalidArgument);
  EXPECT_TRUE(SharedMemory::free(nullptr).ok());
}

// find() names the one allocation that holds all of a buffer, with the offset in it.
TEST(SharedMemory, FindsBuffersInsideAllocations) {
  uint8_t* first = allocate(8192);
  uint8_t* second = allocate(4096);
  const SharedMemory::Span whole = SharedMemory::find(first, 8192);
  const SharedMemory::Span part = SharedMemory::find(first + 5000, 3192);
  EXPECT_NE(whole.id, 0u);
  EXPECT_EQ(part.id, whole.id);
  EXPECT_EQ(part.offset, 5000u);
  EXPECT_NE(SharedMemory::find(second, 1).id, whole.id);
  EXPECT_EQ(SharedMemory::find(first + 5000, 3193).id, 0u) << "a byte beyond the end";
  int local = 0;
  EXPECT_EQ(SharedMemory::find(&local, sizeof local).id, 0u);
  release(first);
  EXPECT_EQ(SharedMemory::find(first, 1).id, 0u);
  release(second);
}

// A peer maps an allocation by its id, asks its owner once, and sees what the owner writes, and the other way round.
TEST(SharedMemory, PeersMapById) {
  uint8_t* memory = allocate(8192);
  const SharedMemory::Span span = SharedMemory::find(memory + 100, 1000);
  int fetched = 0;
  SharedMemory::set_fetch([&](uint64_t id) {
    ++fetched;
    return SharedMemory::descriptor(id);
  });
  auto* there = static_cast<uint8_t*>(SharedMemory::map_peer_writable(span.id, span.offset, 1000));
  ASSERT_NE(there, nullptr);
  EXPECT_NE(there, memory + 100);
  std::memcpy(memory + 100, "owner", 6);
  EXPECT_STREQ(reinterpret_cast<char*>(there), "owner");
  std::memcpy(there + 10, "peer", 5);
  EXPECT_STREQ(reinterpret_cast<char*>(memory + 110), "peer");
  EXPECT_NE(SharedMemory::map_peer(span.id, 0, 8192), nullptr);
  EXPECT_EQ(fetched, 1);
  EXPECT_EQ(SharedMemory::map_peer(span.id, 1, 8192), nullptr) << "beyond the end";
  EXPECT_EQ(SharedMemory::map_peer(span.id, UINT64_MAX, 2), nullptr) << "an offset that wraps around";
  SharedMemory::set_fetch(nullptr);
  release(memory);
}

// What the owner does not have cannot be mapped, and says so by null, again and again.
TEST(SharedMemory, UnknownAllocationsAreNull) {
  constexpr uint64_t kUnknown = 0x12345;
  EXPECT_EQ(SharedMemory::descriptor(kUnknown), -1);
  SharedMemory::set_fetch([](uint64_t id) { return SharedMemory::descriptor(id); });
  EXPECT_EQ(SharedMemory::map_peer(kUnknown, 0, 1), nullptr);
  EXPECT_EQ(SharedMemory::map_peer(kUnknown, 0, 1), nullptr);
  SharedMemory::set_fetch(nullptr);
}

// Threads allocate, look up, map and free at once.
TEST(SharedMemory, ServesManyThreads) {
  SharedMemory::set_fetch([](uint64_t id) { return SharedMemory::descriptor(id); });
  std::vector<std::thread> threads;
  for (uint8_t thread = 1; thread <= 4; ++thread) {
    threads.emplace_back([thread] {
      for (int round = 0; round < 20; ++round) {
        uint8_t* memory = allocate(4096);
        memory[9] = thread;
        const SharedMemory::Span span = SharedMemory::find(memory + 9, 1);
        const auto* there = static_cast<const uint8_t*>(SharedMemory::map_peer(span.id, span.offset, 1));
        ASSERT_NE(there, nullptr);
        EXPECT_EQ(*there, thread);
        release(memory);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  SharedMemory::set_fetch(nullptr);
}

}  // namespace
}  // namespace theseus
