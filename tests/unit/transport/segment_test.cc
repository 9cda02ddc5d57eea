#include "transport/segment.h"

#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "unit/transport/shm_testing.h"

namespace theseus {
namespace {

using testing::geometry_of;
using testing::make_segments;

// Ends a forked child with what it found.
int status_of(pid_t child) {
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool is_mapped(const void* address) {
  const auto page = reinterpret_cast<uintptr_t>(address) & ~uintptr_t{4095};
  return msync(reinterpret_cast<void*>(page), 4096, MS_ASYNC) == 0;
}

struct Region {
  uintptr_t start;
  size_t bytes;
};

std::vector<Region> regions_of(const Segment& segment) {
  const SegmentGeometry& geometry = segment.geometry();
  const int ranks = static_cast<int>(geometry.ranks);
  std::vector<Region> regions{{reinterpret_cast<uintptr_t>(&segment.failed()), sizeof(uint32_t)}};
  for (int rank = 0; rank < ranks; ++rank) {
    regions.push_back({reinterpret_cast<uintptr_t>(&segment.rank_page(rank)), sizeof(RankPage)});
  }
  for (int channel = 0; channel < kShmChannels; ++channel) {
    for (int pair = 0; pair < ranks * ranks; ++pair) {
      const int src = pair / ranks, dst = pair % ranks;
      regions.push_back({reinterpret_cast<uintptr_t>(&segment.control(channel, src, dst)), sizeof(ConnectionControl)});
      for (uint32_t slot = 0; slot < geometry.slots; ++slot) {
        regions.push_back({reinterpret_cast<uintptr_t>(segment.slot(channel, src, dst, static_cast<int>(slot))),
                           geometry.slot_bytes});
      }
    }
  }
  return regions;
}

// No two parts of a segment share a byte, whatever its shape, and all of it can be written.
TEST(Segment, PartsAreApartAndWritable) {
  for (const SegmentGeometry& geometry : {geometry_of(2, 2, 1024), geometry_of(3, 5, 1088), geometry_of(8, 8, 65536)}) {
    Result<std::unique_ptr<Segment>> segment = Segment::create(geometry);
    ASSERT_TRUE(segment.ok()) << segment.status().message();
    std::vector<Region> regions = regions_of(**segment);
    std::sort(regions.begin(), regions.end(), [](const Region& a, const Region& b) { return a.start < b.start; });
    for (size_t i = 1; i < regions.size(); ++i) {
      ASSERT_LE(regions[i - 1].start + regions[i - 1].bytes, regions[i].start) << "part " << i;
    }
    for (const Region& region : regions) {
      *reinterpret_cast<volatile uint8_t*>(region.start) = 1;
      *reinterpret_cast<volatile uint8_t*>(region.start + region.bytes - 1) = 1;
    }
  }
}

// Flags that different ranks write lie on different cache lines.
TEST(Segment, ControlsAreAlignedToLines) {
  Result<std::unique_ptr<Segment>> segment = Segment::create(geometry_of(3, 2, 1024));
  ASSERT_TRUE(segment.ok());
  for (int pair = 0; pair < 9; ++pair) {
    ConnectionControl& control = (*segment)->control(1, pair / 3, pair % 3);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(&control.released) % 64, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(&control.lines[0]) % 64, 0u);
    EXPECT_GE(reinterpret_cast<uintptr_t>(&control.lines[0]), reinterpret_cast<uintptr_t>(&control.released) + 64);
  }
}

// What is attached must be what was agreed: another size or layout is refused with a reason.
TEST(Segment, RefusesMemoryOfAnotherShape) {
  Result<std::unique_ptr<Segment>> segment = Segment::create(geometry_of(2, 4, 2048));
  ASSERT_TRUE(segment.ok());
  Result<std::unique_ptr<Segment>> larger = Segment::attach(dup((*segment)->fd()), geometry_of(3, 4, 2048));
  ASSERT_FALSE(larger.ok());
  EXPECT_EQ(larger.status().code(), Code::InternalError);
  EXPECT_NE(larger.status().message().find("another size"), std::string::npos) << larger.status().message();

  const int blank = memfd_create("blank", MFD_CLOEXEC);
  ASSERT_GE(blank, 0);
  struct stat info{};
  ASSERT_EQ(fstat((*segment)->fd(), &info), 0);
  ASSERT_EQ(ftruncate(blank, info.st_size), 0);
  Result<std::unique_ptr<Segment>> other = Segment::attach(blank, geometry_of(2, 4, 2048));
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find("another layout"), std::string::npos) << other.status().message();
}

// Ranks of one process share one mapping, which lives as long as the last of them.
TEST(Segment, RanksOfOneProcessShareOneMapping) {
  std::vector<std::unique_ptr<Segment>> segments = make_segments(geometry_of(3));
  RankPage* page = &segments[0]->rank_page(0);
  EXPECT_EQ(&segments[1]->rank_page(0), page);
  EXPECT_EQ(&segments[2]->rank_page(0), page);
  segments[0].reset();
  segments[1].reset();
  page->ready.store(7);
  EXPECT_EQ(segments[2]->rank_page(0).ready.load(), 7u);
  segments[2].reset();
  EXPECT_FALSE(is_mapped(page));
}

// Segments come and go on many threads at once without mixing up whose is whose.
TEST(Segment, MappingsComeAndGoOnManyThreads) {
  std::vector<std::thread> threads;
  for (uint32_t thread = 1; thread <= 4; ++thread) {
    threads.emplace_back([thread] {
      for (int round = 0; round < 20; ++round) {
        std::vector<std::unique_ptr<Segment>> segments = make_segments(geometry_of(2));
        segments[0]->rank_page(1).ready.store(thread);
        segments[0].reset();
        EXPECT_EQ(segments[1]->rank_page(1).ready.load(), thread);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Another process that is given the descriptor sees the same memory.
TEST(Segment, AnotherProcessSeesTheSameMemory) {
  const SegmentGeometry geometry = geometry_of(2);
  Result<std::unique_ptr<Segment>> segment = Segment::create(geometry);
  ASSERT_TRUE(segment.ok());
  (*segment)->rank_page(0).ready.store(41);
  const pid_t child = fork();
  if (child == 0) {
    Result<std::unique_ptr<Segment>> own = Segment::attach(dup((*segment)->fd()), geometry);
    if (!own.ok()) _exit(2);
    const uint32_t seen = (*own)->rank_page(0).ready.load();
    (*own)->rank_page(1).ready.store(seen + 1);
    (*own)->failed().store(9);
    _exit(0);
  }
  ASSERT_EQ(status_of(child), 0);
  EXPECT_EQ((*segment)->rank_page(1).ready.load(), 42u);
  EXPECT_EQ((*segment)->failed().load(), 9u);
}

// A forked child has nothing of the memory: it can neither disturb the ranks nor keep the pages alive.
TEST(Segment, ForkedChildInheritsNoMapping) {
  Result<std::unique_ptr<Segment>> segment = Segment::create(geometry_of(2));
  ASSERT_TRUE(segment.ok());
  const RankPage* page = &(*segment)->rank_page(0);
  ASSERT_TRUE(is_mapped(page));
  const pid_t child = fork();
  if (child == 0) _exit(is_mapped(page) ? 1 : 0);
  EXPECT_EQ(status_of(child), 0);
}

}  // namespace
}  // namespace theseus
